//! Pokes at /proc, /sys and /dev.

use crate::conformance::guest::python;
use crate::conformance::hostile_table::all_held;
use crate::conformance::row::Promise::ClosedByDefault;
use crate::conformance::row::{Row, hostile};

const SECRETS: &str = "
for name in ('kcore', 'kmsg', 'keys', 'timer_list', 'sched_debug', 'modules', 'config.gz', 'cmdline',
             'vmallocinfo', 'slabinfo', 'pagetypeinfo', 'kpagecount', 'kpageflags', 'kpagecgroup', 'vmcore'):
    blank('/proc/' + name)
for path in ('/dev/kmsg', '/dev/mem', '/dev/kmem', '/dev/port', '/sys/kernel/debug/kprobes/list', '/sys/firmware/acpi/tables/DSDT', '/sys/firmware/dmi/tables/DMI',
             '/proc/1/pagemap'):
    blank(path)
try: symbols = open('/proc/kallsyms').read(4000).split('\\n')
except OSError: symbols = []
hold('no address of the kernel is told', not any(line and line.split()[0].strip('0') for line in symbols if line))
for name in ('iomem', 'ioports'):
    try: lines = open('/proc/' + name).read().split('\\n')
    except OSError: lines = []
    hold(f'{name} tells no address', not any(line.split()[0].strip('0-') for line in lines if line))
refused('messages of the kernel', lambda: syscall('syslog', 3, ctypes.create_string_buffer(100), 100))
";
const PROC_WRITES: &str = "
for name in ('sysrq-trigger', 'mtrr', 'scsi/scsi', 'acpi/wakeup', 'irq/default_smp_affinity', 'timer_stats', 'latency_stats',
             'sys/kernel/core_pattern', 'sys/kernel/hostname', 'sys/kernel/domainname', 'sys/kernel/modprobe', 'sys/kernel/hotplug', 'sys/kernel/sysrq',
             'sys/kernel/ns_last_pid', 'sys/kernel/panic', 'sys/kernel/randomize_va_space', 'sys/kernel/yama/ptrace_scope', 'sys/kernel/shmmax',
             'sys/kernel/cad_pid', 'sys/kernel/poweroff_cmd', 'sys/kernel/usermodehelper/bset', 'sys/kernel/unprivileged_bpf_disabled',
             'sys/vm/drop_caches', 'sys/vm/overcommit_memory', 'sys/vm/panic_on_oom', 'sys/vm/mmap_min_addr', 'sys/fs/suid_dumpable', 'sys/fs/file-max',
             'sys/fs/binfmt_misc/register', 'sys/fs/protected_hardlinks', 'sys/user/max_user_namespaces', 'sys/net/ipv4/ip_forward',
             'sys/net/core/somaxconn', '1/oom_score_adj', '1/mem', '1/clear_refs', '1/coredump_filter', '1/uid_map', '1/setgroups'):
    shut('/proc/' + name)
for name in ('uid_map', 'gid_map'):
    refused('own ' + name, lambda: os.write(os.open('/proc/self/' + name, os.O_WRONLY), b'0 0 1\\n'), MISSING)
";
const SYS_WRITES: &str = "
for name in ('kernel/uevent_helper', 'kernel/mm/transparent_hugepage/enabled', 'kernel/profiling', 'kernel/kexec_crash_size', 'power/state',
             'fs/cgroup/cgroup.procs', 'fs/cgroup/release_agent', 'fs/cgroup/memory/release_agent', 'fs/cgroup/memory/cgroup.procs',
             'fs/cgroup/devices/devices.allow', 'fs/cgroup/unified/cgroup.procs', 'class/net/lo/mtu', 'module/kernel/parameters/panic',
             'block/sda/queue/scheduler', 'bus/pci/rescan', 'devices/system/cpu/cpu1/online'):
    shut('/sys/' + name)
made = []
for top, folders, _ in os.walk('/sys'):
    folders[:] = folders[:3]
    try: os.mkdir(top + '/belljar-made'); made.append(top)
    except OSError: pass
hold(f'nothing can be made in /sys {made}', not made)
";
const FIRST_PROCESS: &str = "
for name in ('mem', 'environ', 'auxv', 'maps', 'smaps', 'stack', 'syscall', 'pagemap', 'io', 'personality', 'map_files', 'fdinfo/0'):
    try: text = open('/proc/1/' + name, 'rb').read(16)
    except OSError as error: held(name + ' ' + errno.errorcode.get(error.errno, '?'))
    else: hold(f'{name} {text!r}', not text)
for name in ('exe', 'root', 'cwd', 'fd/0', 'fd/3', 'ns/mnt', 'ns/net'):
    try: target = os.readlink('/proc/1/' + name)
    except OSError as error: held(name + ' ' + errno.errorcode.get(error.errno, '?'))
    else: hold(f'{name} {target!r}', target in ('/', ''))
refused('overwrite the program of the first process', lambda: os.open('/proc/1/exe', os.O_WRONLY), MISSING)
try: hold('descriptors of the first process', os.listdir('/proc/1/fd') == [])
except OSError: held('descriptors of the first process')
";
const DEVICES: &str = "
import stat
for name in ('mem', 'kmem', 'port', 'kmsg', 'sda', 'sda1', 'vda', 'nvme0n1', 'loop0', 'loop-control', 'kvm', 'fuse', 'net/tun', 'uinput', 'input/event0', 'snd/seq',
             'hpet', 'rtc0', 'mapper/control', 'btrfs-control', 'vhost-net', 'vsock', 'vhost-vsock', 'autofs', 'cuse', 'userfaultfd', 'dri/card0', 'tpm0',
             'watchdog', 'bus/usb', 'console', 'tty0', 'tty1', 'ttyS0', 'vcs', 'fb0'):
    path = '/dev/' + name
    try: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error: held(path)
    else: breach(path)
for place in ('/workspace/node', '/tmp/node', '/dev/node', '/dev/shm/node', os.path.expanduser('~/node')):
    refused('character device ' + place, lambda: os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, 1)))
    refused('block device ' + place, lambda: os.mknod(place, 0o666 | stat.S_IFBLK, os.makedev(8, 0)))
hold('no disk is told', not os.path.exists('/dev/disk') and not os.path.exists('/dev/block'))
";
const TERMINALS: &str = "
import fcntl, pty
master, slave = pty.openpty()
refused('push a byte into a terminal', lambda: fcntl.ioctl(slave, 0x5412, b'x'), errno.EIO)
refused('paste into a terminal', lambda: fcntl.ioctl(slave, 0x541c, b'\\3'), errno.ENOTTY, errno.EINVAL)
refused('the terminal of whoever started this', lambda: os.open('/dev/tty', os.O_RDWR), errno.ENXIO)
mine = os.ttyname(slave)
others = [name for name in os.listdir('/dev/pts') if name != 'ptmx' and '/dev/pts/' + name != mine]
hold(f'no terminal of others {others}', not others)
for number in range(3):
    hold(f'stream {number} is no terminal', not os.isatty(number))
refused('hang up', lambda: syscall('vhangup'))
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, ClosedByDefault, shows);
    vec![
        row("kernel-secrets", "files that tell the kernel's secrets are shut or empty")
            .runs(python(SECRETS), all_held(27)),
        row("proc-writes", "nothing in /proc that steers the machine can be opened to be written")
            .runs(python(PROC_WRITES), all_held(41)),
        row("sys-writes", "nothing in /sys can be opened to be written")
            .runs(python(SYS_WRITES), all_held(17)),
        row("first-process", "the first process shows nothing of itself, and nothing of where it came from")
            .runs(python(FIRST_PROCESS), all_held(21)),
        row("devices", "no device of the machine can be opened or made").runs(python(DEVICES), all_held(47)),
        row("terminals", "nothing can be typed into a terminal, and no terminal of the host is there")
            .runs(python(TERMINALS), all_held(8)),
    ]
}
