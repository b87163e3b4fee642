//! What a guest sees of itself and its machine.

use crate::conformance::expectation::Text;
use crate::conformance::guest::{python, sh};
use crate::conformance::need::Need;
use crate::conformance::row::Promise::{ClosedByDefault, PlainProgramsRun};
use crate::conformance::row::{Row, engine, exits};

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    [oneself(), machine()].concat()
}

fn oneself() -> Vec<Row> {
    vec![
        engine("user", ClosedByDefault, "the guest is an ordinary user with a name, a group and a home")
            .runs(sh("id -u; id -g; id -un; id -gn; echo ~"), exits(0).out("1000\n1000\nrunner\nrunner\n/home/runner\n")),
        engine("capabilities", ClosedByDefault, "the guest has no capability and cannot get one")
            .runs(
                sh("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t' | tr '\\n' ' '"),
                exits(0).out(
                    "CapInh:0000000000000000 CapPrm:0000000000000000 CapEff:0000000000000000 \
                     CapBnd:0000000000000000 CapAmb:0000000000000000 NoNewPrivs:1 Seccomp:2 ",
                ),
            ),
        engine("signals-as-new", PlainProgramsRun, "no signal is ignored or blocked at the start")
            .runs(
                sh("grep -E '^Sig(Blk|Ign)' /proc/self/status | tr -d '\\t'"),
                exits(0).out("SigBlk:0000000000000000\nSigIgn:0000000000000000\n"),
            ),
        engine("descriptors-as-new", ClosedByDefault, "a command has its three streams open and nothing else")
            .runs(
                python("print(sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)))"),
                exits(0).out("[0, 1, 2]\n"),
            ),
        engine("session-of-its-own", PlainProgramsRun, "a command leads a session of its own, without a terminal")
            .runs(
                python("print(os.getsid(0) == os.getpid() == os.getpgid(0))\ntry: open('/dev/tty')\nexcept OSError as error: print(errno.errorcode[error.errno])"),
                exits(0).out("True\nENXIO\n"),
            ),
        engine("processes-seen", ClosedByDefault, "/proc shows the guest's processes and the first one")
            .runs(
                python("print(len([n for n in os.listdir('/proc') if n.isdigit()]) <= 2, os.getpid() < 1000)"),
                exits(0).out("True True\n"),
            ),
        engine("ps", PlainProgramsRun, "ps works, and shows no process of the host")
            .needs(Need::Program("ps"))
            .runs(sh("ps -e -o comm= | wc -l"), exits(0).stdout(Text::Number(1, 5))),
        engine("limits-as-told", PlainProgramsRun, "open files have a bound that plain programs can live with")
            .runs(
                python("import resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); print(256 <= soft <= hard <= 1 << 20)"),
                exits(0).out("True\n"),
            ),
    ]
}

fn machine() -> Vec<Row> {
    vec![
        engine("hostname", ClosedByDefault, "the machine has the name it was given")
            .runs(python("print(os.uname().nodename)"), exits(0).out("belljar\n")),
        engine("processors-seen", PlainProgramsRun, "nproc tells a number of processors")
            .needs(Need::Program("nproc"))
            .runs(sh("nproc"), exits(0).stdout(Text::Number(1, 4096))),
        engine("clock", PlainProgramsRun, "the clocks run")
            .runs(
                python("a, b = time.time(), time.monotonic(); time.sleep(0.05); print(time.time() > 1.6e9, 0.04 < time.monotonic() - b < 5, time.time() > a)"),
                exits(0).out("True True True\n"),
            ),
        engine("locale", PlainProgramsRun, "text in UTF-8 is text")
            .runs(
                python("import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.nl_langinfo(locale.CODESET), len('日本語'))"),
                exits(0).out("UTF-8 3\n"),
            ),
        engine("groups-unseen", ClosedByDefault, "a guest does not learn where its control groups are")
            .runs(sh("cut -d: -f3 /proc/self/cgroup | sort -u"), exits(0).out("/\n")),
        engine("messages-unseen", ClosedByDefault, "messages, queues and segments of the host are not the guest's")
            .runs(
                sh("for f in msg sem shm; do tail -n +2 /proc/sysvipc/$f; done | wc -l"),
                exits(0).stdout(Text::Number(0, 0)),
            ),
    ]
}
