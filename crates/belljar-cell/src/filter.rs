//! The syscall filter: the table of calls as one small program for the kernel.
//!
//! Written by hand because its length and its depth count: when a filter is installed the kernel checks and translates
//! every step and then walks the program once for every call there is. So it is a binary search over ranges of
//! neighbours with the same answer, and all answers share their last steps. It is compiled along with this crate: a
//! process that installs it only hands the kernel a constant.

use std::io;

use crate::kernel;
use crate::powers::Role;
use crate::syscalls::{Answer, CALLS, Condition, Guard, Machine};

/// A filter that is ready to be installed in any number of processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter {
    program: &'static [libc::sock_filter],
}

static COMPILED: Program<CAPACITY> = compile_for(Machine::THIS, Role::Guest);
static COMPILED_FOR_BUILDING: Program<CAPACITY> = compile_for(Machine::THIS, Role::Builder);

impl Filter {
    /// The filter for this machine.
    pub(crate) fn compile() -> Filter {
        Filter { program: COMPILED.steps() }
    }

    /// The filter of a cell for building.
    pub(crate) fn for_building() -> Filter {
        Filter { program: COMPILED_FOR_BUILDING.steps() }
    }

    /// Installs the filter on this thread, which must have `no_new_privs` set; there is no way back.
    pub(crate) fn install(&self) -> io::Result<()> {
        kernel::install_filter(self.program)
    }

    /// The program as bytes, the same for the same policy.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        self.program.iter().flat_map(|step| {
            let [low, high] = step.code.to_le_bytes();
            let [a, b, c, d] = step.k.to_le_bytes();
            [low, high, step.jt, step.jf, a, b, c, d]
        })
    }
}

const fn compile_for(machine: Machine, role: Role) -> Program<CAPACITY> {
    let mut program = Program::new();
    let (ranges, count) = ranges(machine, role, &mut program);
    let (ranges, _) = ranges.split_at(count);
    let search = program.search(ranges);
    program.load(NUMBER, search);
    let number = program.top();
    // Another architecture's calls have other numbers, so nothing sensible can be said about them.
    let kill = program.give(KILL_PROCESS);
    let known = program.jump(JUMP_EQUAL, architecture(machine), number, kill);
    program.load(ARCHITECTURE, known);
    program
}

const fn architecture(machine: Machine) -> u32 {
    match machine {
        Machine::X86_64 => 0xc000_003e,
        Machine::Aarch64 => 0xc000_00b7,
    }
}

/// The most steps a program may have.
const CAPACITY: usize = 256;
/// No call of the table has this number or a higher one.
const NUMBERS: usize = 512;

/// Offsets in what the kernel shows to a filter.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = 0x20;
const ANY_BIT: u16 = 0x45;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
const NO_SUCH_CALL: u32 = 0x0005_0000 | libc::ENOSYS as u32;

/// The first number of a range with one answer, and where the program gives it.
type Range = (u32, Label);

/// Ranges from 0 on without a gap, and how many there are; the last has no end.
///
/// Numbers that nobody has, and those beyond the table, are no calls.
const fn ranges(machine: Machine, role: Role, program: &mut Program<CAPACITY>) -> ([Range; NUMBERS], usize) {
    let missing = program.give(NO_SUCH_CALL);
    let mut labels = [missing; NUMBERS];
    let mut at = 0;
    while at < CALLS.len() {
        if let Some(number) = CALLS[at].number(machine) {
            labels[number as usize] = program.answer(CALLS[at].answer_for(role));
        }
        at += 1;
    }
    let mut ranges = [(0, labels[0]); NUMBERS];
    let (mut count, mut number) = (1, 1);
    while number < NUMBERS {
        if labels[number] != labels[number - 1] {
            ranges[count] = (number as u32, labels[number]);
            count += 1;
        }
        number += 1;
    }
    (ranges, count)
}

/// A place in the program, counted from its end.
type Label = usize;

/// A program in the making. Jumps lead forward only, so it is written from its end, at the end of an array.
#[derive(Clone, Copy)]
struct Program<const N: usize> {
    array: [libc::sock_filter; N],
    length: usize,
    guards: [Option<Label>; Guard::COUNT],
}

impl<const N: usize> Program<N> {
    const fn new() -> Program<N> {
        let nothing = libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 };
        Program { array: [nothing; N], length: 0, guards: [None; Guard::COUNT] }
    }

    const fn steps(&self) -> &[libc::sock_filter] {
        self.array.split_at(N - self.length).1
    }

    const fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> Label {
        self.length += 1;
        self.array[N - self.length] = libc::sock_filter { code, jt, jf, k };
        self.top()
    }

    const fn at(&self, label: Label) -> libc::sock_filter {
        self.array[N - 1 - label]
    }

    const fn top(&self) -> Label {
        self.length - 1
    }

    /// How many steps lie between a step that would be put here and a place.
    const fn distance(&self, label: Label) -> usize {
        self.length - label - 1
    }

    /// Whether a branch can span that; one less than fits, as the other branch may need a step of its own first.
    const fn reaches(&self, label: Label) -> bool {
        self.distance(label) < u8::MAX as usize
    }

    /// A place within reach that is as good as the given one.
    const fn near(&mut self, label: Label) -> Label {
        let step = self.at(label);
        match step.code {
            _ if self.reaches(label) => label,
            RETURN => self.push(RETURN, 0, 0, step.k),
            _ => self.push(JUMP, 0, 0, self.distance(label) as u32),
        }
    }

    /// Ends with an answer; one that is within reach is shared.
    const fn give(&mut self, answer: u32) -> Label {
        let mut label = self.length;
        while label > 0 {
            label -= 1;
            let step = self.at(label);
            if step.code == RETURN && step.k == answer && self.reaches(label) {
                return label;
            }
        }
        self.push(RETURN, 0, 0, answer)
    }

    const fn jump(&mut self, code: u16, value: u32, yes: Label, no: Label) -> Label {
        let yes = self.near(yes);
        let no = self.near(no);
        self.push(code, self.distance(yes) as u8, self.distance(no) as u8, value)
    }

    /// Loads a word and goes on at a place.
    const fn load(&mut self, offset: u32, next: Label) -> Label {
        if next != self.top() {
            self.push(JUMP, 0, 0, self.distance(next) as u32);
        }
        self.push(LOAD, 0, 0, offset)
    }

    /// Finds the range that a number lies in.
    const fn search(&mut self, ranges: &[Range]) -> Label {
        if ranges.len() == 1 {
            return ranges[0].1;
        }
        let (lower, upper) = ranges.split_at(ranges.len() / 2);
        let middle = upper[0].0;
        let upper = self.search(upper);
        let lower = self.search(lower);
        self.jump(JUMP_GREATER_EQUAL, middle, upper, lower)
    }

    const fn answer(&mut self, answer: Answer) -> Label {
        match answer {
            Answer::Allowed => self.give(ALLOW),
            Answer::Refused => self.give(REFUSE),
            Answer::NoSuchCall => self.give(NO_SUCH_CALL),
            Answer::When(guard) => self.guard(guard),
        }
    }

    /// Calls with the same guard share it.
    const fn guard(&mut self, guard: Guard) -> Label {
        if let Some(label) = self.guards[guard as usize] {
            return label;
        }
        let rules = guard.rules();
        let mut label = self.give(REFUSE);
        let mut left = rules.len();
        while left > 0 {
            left -= 1;
            label = self.rule(rules[left], label);
        }
        self.guards[guard as usize] = Some(label);
        label
    }

    /// Tests one after the other; the first that fails leads to the next rule, and past the last the call is allowed.
    const fn rule(&mut self, rule: &[Condition], otherwise: Label) -> Label {
        let mut label = self.give(ALLOW);
        let mut left = rule.len();
        while left > 0 {
            left -= 1;
            label = self.condition(rule[left], label, otherwise);
        }
        label
    }

    const fn condition(&mut self, condition: Condition, yes: Label, no: Label) -> Label {
        match condition {
            Condition::OneOf(argument, values) => {
                let tests = self.equals(values, yes, no);
                self.load(low(argument), tests)
            }
            Condition::NoneOf(argument, values) => {
                let tests = self.equals(values, no, yes);
                self.load(low(argument), tests)
            }
            Condition::Without(argument, bits) => {
                let test = self.jump(ANY_BIT, bits, no, yes);
                self.load(low(argument), test)
            }
            Condition::Null(argument) => {
                let test = self.jump(JUMP_EQUAL, 0, yes, no);
                let upper = self.load(high(argument), test);
                let test = self.jump(JUMP_EQUAL, 0, upper, no);
                self.load(low(argument), test)
            }
        }
    }

    const fn equals(&mut self, values: &[u32], yes: Label, no: Label) -> Label {
        let mut label = no;
        let mut at = 0;
        while at < values.len() {
            label = self.jump(JUMP_EQUAL, values[at], yes, label);
            at += 1;
        }
        label
    }
}

/// Both machines keep the lower half of a number first.
const fn low(argument: u8) -> u32 {
    ARGUMENTS + 8 * argument as u32
}

const fn high(argument: u8) -> u32 {
    low(argument) + 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syscalls::{Call, Docker};

    const MACHINES: [Machine; 2] = [Machine::X86_64, Machine::Aarch64];

    /// The kernel's side of it: what the program answers to a call.
    fn run<const N: usize>(filter: &Program<N>, architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let word = |offset: u32| match offset {
            NUMBER => number,
            ARCHITECTURE => architecture,
            offset => {
                let argument = arguments[(offset - ARGUMENTS) as usize / 8];
                (if offset % 8 == 0 { argument } else { argument >> 32 }) as u32
            }
        };
        let (mut at, mut register) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = filter.steps()[at];
            let branch = |holds: bool| usize::from(if holds { jt } else { jf });
            at += 1 + match code {
                LOAD => {
                    register = word(k);
                    0
                }
                JUMP => k as usize,
                ANY_BIT => branch(register & k != 0),
                JUMP_EQUAL => branch(register == k),
                JUMP_GREATER_EQUAL => branch(register >= k),
                RETURN => return k,
                other => panic!("{other:#x}"),
            };
        }
    }

    /// What the table says, told without the compiler.
    fn expected(answer: Answer, arguments: [u64; 6]) -> u32 {
        let holds = |condition: &Condition| {
            let low = |argument: u8| arguments[usize::from(argument)] as u32;
            match condition {
                Condition::OneOf(argument, values) => values.contains(&low(*argument)),
                Condition::NoneOf(argument, values) => !values.contains(&low(*argument)),
                Condition::Without(argument, bits) => low(*argument) & bits == 0,
                Condition::Null(argument) => arguments[usize::from(*argument)] == 0,
            }
        };
        match answer {
            Answer::Allowed => ALLOW,
            Answer::Refused => REFUSE,
            Answer::NoSuchCall => NO_SUCH_CALL,
            Answer::When(guard) if guard.rules().iter().any(|rule| rule.iter().all(holds)) => ALLOW,
            Answer::When(_) => REFUSE,
        }
    }

    /// Values at which a guard may change its mind, in both halves of an argument.
    fn samples(guard: Guard) -> Vec<u64> {
        let mut values = vec![0, 1, u64::MAX, 1 << 32, u64::from(u32::MAX)];
        for condition in guard.rules().iter().copied().flatten() {
            match condition {
                Condition::OneOf(_, list) | Condition::NoneOf(_, list) => {
                    let around = |value: u32| [value.wrapping_sub(1), value, value.wrapping_add(1)];
                    values.extend(list.iter().flat_map(|value| around(*value)).map(u64::from));
                    values.extend(list.iter().map(|value| u64::from(*value) | 1 << 32));
                }
                Condition::Without(_, bits) => {
                    values.extend((0..64).map(|bit| 1 << bit));
                    values.extend([u64::from(*bits), u64::from(!bits)]);
                }
                Condition::Null(_) => values.extend([0, 1 << 63]),
            }
        }
        values.sort_unstable();
        values.dedup();
        values
    }

    fn look_at(
        filter: &Program<CAPACITY>,
        (machine, role): (Machine, Role),
        call: &Call,
        arguments: [u64; 6],
    ) {
        let Some(number) = call.number(machine) else { return };
        let given = run(filter, architecture(machine), number, arguments);
        let expected = expected(call.answer_for(role), arguments);
        assert_eq!(given, expected, "{} {arguments:x?} on {machine:?} for a {role:?}", call.name);
    }

    #[test]
    fn every_call_gets_the_answer_of_the_table() {
        let both = |machine| [(machine, Role::Guest), (machine, Role::Builder)];
        for whose in MACHINES.into_iter().flat_map(both) {
            let filter = compile_for(whose.0, whose.1);
            for call in CALLS {
                match call.answer_for(whose.1) {
                    Answer::When(guard) => {
                        for (one, other) in pairs(&samples(guard)) {
                            for place in 0..4 {
                                let mut arguments = [0; 6];
                                arguments[place] = one;
                                arguments[(place + 1) % 4] = other;
                                look_at(&filter, whose, call, arguments);
                                arguments[(place + 1) % 4] = 0;
                                arguments[(place + 2) % 4] = other;
                                look_at(&filter, whose, call, arguments);
                            }
                        }
                    }
                    _ => look_at(&filter, whose, call, [u64::MAX; 6]),
                }
            }
        }
    }

    fn pairs(values: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
        values.iter().flat_map(|one| values.iter().map(|other| (*one, *other)))
    }

    #[test]
    fn a_number_that_is_no_call_is_answered_enosys() {
        for machine in MACHINES {
            let filter = compile_for(machine, Role::Guest);
            let known: Vec<u32> = CALLS.iter().filter_map(|call| call.number(machine)).collect();
            let x32 = [0x4000_0000, 0x4000_0001, u32::MAX];
            for number in (0..1024).chain(x32).filter(|number| !known.contains(number)) {
                let given = run(&filter, architecture(machine), number, [0; 6]);
                assert_eq!(given, NO_SUCH_CALL, "{number} on {machine:?}");
            }
        }
    }

    #[test]
    fn calls_of_another_architecture_kill() {
        for machine in MACHINES {
            let filter = compile_for(machine, Role::Guest);
            for other in [0, 0x4000_0003, 0x4000_0028, architecture(machine) + 1] {
                assert_eq!(run(&filter, other, 1, [0; 6]), KILL_PROCESS, "{other:x} on {machine:?}");
            }
        }
    }

    /// The same by hand, for those that matter most: a table that says the wrong thing is no better than a program.
    #[test]
    fn guarded_calls_are_judged_by_their_arguments() {
        let any = u64::MAX;
        let (allow, refuse) = (ALLOW, REFUSE);
        for (name, arguments, wanted) in [
            ("clone", [0x11, 0, 0, 0, 0, 0], allow),
            ("clone", [0x003d_0f00, 0, 0, 0, 0, 0], allow),
            ("clone", [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0], refuse),
            ("clone", [libc::CLONE_NEWNS as u64 | 0x11, 0, 0, 0, 0, 0], refuse),
            ("clone", [libc::CLONE_PARENT as u64 | 0x11, 0, 0, 0, 0, 0], refuse),
            ("socket", [2, any, any, 0, 0, 0], allow),
            ("socket", [libc::AF_NETLINK as u64, 3, 0, 0, 0, 0], allow),
            ("socket", [libc::AF_NETLINK as u64, 3, libc::NETLINK_NETFILTER as u64, 0, 0, 0], refuse),
            ("socket", [libc::AF_PACKET as u64, 3, 0, 0, 0, 0], refuse),
            ("socket", [libc::AF_ALG as u64, 0, 0, 0, 0, 0], refuse),
            ("socketpair", [libc::AF_VSOCK as u64, 0, 0, 0, 0, 0], refuse),
            ("socketpair", [libc::AF_UNIX as u64, 1, 0, 0, 0, 0], allow),
            ("personality", [0xffff_ffff, 0, 0, 0, 0, 0], allow),
            ("personality", [0x0004_0000, 0, 0, 0, 0, 0], allow),
            ("personality", [0x0040_0000, 0, 0, 0, 0, 0], refuse),
            ("ioctl", [0, 0x5401, 0, 0, 0, 0], allow),
            ("ioctl", [0, 0x5412, 0, 0, 0, 0], refuse),
            ("ioctl", [0, 0xf_0000_5412, 0, 0, 0, 0], refuse),
            ("prlimit64", [0, 7, any, 0, 0, 0], allow),
            ("prlimit64", [1, 7, 0, any, 0, 0], allow),
            ("prlimit64", [1, 7, 1 << 32, 0, 0, 0], refuse),
            ("prlimit64", [1, 7, 1, 0, 0, 0], refuse),
            ("openat", [0, 0, 0, 0o4755, 0, 0], allow),
            ("openat", [0, 0, libc::O_CREAT as u64, 0o644, 0, 0], allow),
            ("openat", [0, 0, libc::O_CREAT as u64, 0o4755, 0, 0], refuse),
            ("openat", [0, 0, libc::O_TMPFILE as u64, 0o2755, 0, 0], refuse),
            ("open", [0, libc::O_CREAT as u64, 0o2755, 0, 0, 0], refuse),
            ("creat", [0, 0o4755, 0, 0, 0, 0], refuse),
            ("fchmod", [3, 0o755, 0, 0, 0, 0], allow),
            ("fchmod", [3, 0o2755, 0, 0, 0, 0], refuse),
            ("fchmodat", [0, 0, 0o6000, 0, 0, 0], refuse),
            ("fchmodat2", [0, 0, 0o4000, 0, 0, 0], refuse),
            ("fchmodat2", [0, 0, 0o1777, 0, 0, 0], allow),
            ("mknodat", [0, 0, 0o104_755, 0, 0, 0], refuse),
        ] {
            let filter = compile_for(Machine::X86_64, Role::Guest);
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            let number = call.number(Machine::X86_64).unwrap();
            let given = run(&filter, architecture(Machine::X86_64), number, arguments);
            assert_eq!(given, wanted, "{name} {arguments:x?}");
        }
    }

    #[test]
    fn the_program_is_short_and_shallow() {
        for machine in MACHINES {
            let filter = compile_for(machine, Role::Guest);
            let length = filter.steps().len();
            assert!(length < 200, "{length} steps on {machine:?}");
        }
    }

    /// A longer program needs steps of its own to reach its ends; none may be lost on the way.
    #[test]
    fn far_jumps_arrive() {
        let mut program = Program::<8192>::new();
        let ends: Vec<(u32, Label)> =
            (0..1000).map(|value| (value, program.push(RETURN, 0, 0, value))).collect();
        let search = program.search(&ends);
        program.load(NUMBER, search);
        for number in 0..1000 {
            assert_eq!(run(&program, 0, number, [0; 6]), number);
        }
    }

    #[test]
    fn every_refusal_and_every_difference_has_its_reason() {
        for call in CALLS {
            let plain = matches!(call.answer, Answer::Allowed) && call.docker == Docker::Allows;
            assert!(plain || !call.why.is_empty(), "{}", call.name);
        }
    }

    #[test]
    fn dangerous_calls_are_not_on_the_list() {
        for name in [
            "mount",
            "umount2",
            "unshare",
            "setns",
            "pivot_root",
            "chroot",
            "bpf",
            "keyctl",
            "add_key",
            "request_key",
            "userfaultfd",
            "io_uring_setup",
            "perf_event_open",
            "open_by_handle_at",
            "init_module",
            "finit_module",
            "kexec_load",
            "reboot",
            "swapon",
            "clone3",
            "fsopen",
            "open_tree",
            "move_mount",
            "mount_setattr",
            "settimeofday",
            "clock_settime",
            "quotactl",
            "acct",
            "iopl",
            "ioperm",
            "openat2",
        ] {
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            assert!(matches!(call.answer, Answer::Refused | Answer::NoSuchCall), "{name} is allowed");
        }
    }
}
