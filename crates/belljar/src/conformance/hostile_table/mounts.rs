//! Ways out by mounts, namespaces and roots.

use crate::conformance::guest::python;
use crate::conformance::hostile_table::all_held;
use crate::conformance::row::Promise::ClosedByDefault;
use crate::conformance::row::{Row, hostile};

const MOUNT: &str = "
REMOUNT, BIND, MOVE, SHARED = 32, 4096, 8192, 1 << 20
for kind in (b'tmpfs', b'proc', b'sysfs', b'overlay', b'cgroup', b'devpts', b'mqueue', b'debugfs', b'bpf', b'fuse', b'ext4'):
    refused('mount ' + kind.decode(), lambda: syscall('mount', b'none', b'/tmp', kind, 0, 0))
refused('bind / over /tmp', lambda: syscall('mount', b'/', b'/tmp', 0, BIND, 0))
refused('make /usr writable', lambda: syscall('mount', b'none', b'/usr', 0, REMOUNT | BIND, 0))
refused('make / writable', lambda: syscall('mount', b'none', b'/', 0, REMOUNT, 0))
refused('make /proc/sys writable', lambda: syscall('mount', b'none', b'/proc/sys', 0, REMOUNT | BIND, 0))
refused('move /workspace', lambda: syscall('mount', b'/workspace', b'/tmp', 0, MOVE, 0))
refused('share /', lambda: syscall('mount', b'none', b'/', 0, SHARED, 0))
";
const NEW_MOUNT: &str = "
refused('fsopen', lambda: syscall('fsopen', b'tmpfs', 0))
refused('fspick', lambda: syscall('fspick', -100, b'/tmp', 0))
refused('open_tree', lambda: syscall('open_tree', -100, b'/', 1))
refused('move_mount', lambda: syscall('move_mount', -100, b'/workspace', -100, b'/tmp', 0))
attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
refused('mount_setattr', lambda: syscall('mount_setattr', -100, b'/usr', 0, ctypes.byref(attributes), 32))
";
const UNMOUNT: &str = "
for place in (b'/proc/sys', b'/proc', b'/proc/kcore', b'/dev', b'/dev/shm', b'/tmp', b'/workspace', b'/usr', b'/'):
    refused('unmount ' + place.decode(), lambda: syscall('umount2', place, 2))
";
const NAMESPACES: &str = "
FLAGS = {'user': 0x10000000, 'mount': 0x20000, 'pid': 0x20000000, 'net': 0x40000000, 'ipc': 0x8000000, 'uts': 0x4000000,
         'cgroup': 0x2000000, 'time': 0x80}
def clone(flags):
    pid = syscall('clone', flags | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    return pid
def clone3(flags):
    arguments = (ctypes.c_uint64 * 8)(flags, 0, 0, 0, 17, 0, 0, 0)
    pid = syscall('clone3', ctypes.byref(arguments), 64)
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    return pid
for name, flag in FLAGS.items():
    refused('unshare ' + name, lambda: syscall('unshare', flag))
    if name != 'time': refused('clone ' + name, lambda: clone(flag))
    refused('clone3 ' + name, lambda: clone3(flag))
refused('unshare user and mount', lambda: syscall('unshare', 0x10020000))
refused('clone user and mount', lambda: clone(0x10020000))
";
const SETNS: &str = "
kinds = ('cgroup', 'ipc', 'mnt', 'net', 'pid', 'time', 'user', 'uts')
for kind in kinds:
    path = '/proc/self/ns/' + kind
    refused('enter own ' + kind, lambda: syscall('setns', os.open(path, os.O_RDONLY), 0), MISSING)
    refused('enter that of the first process: ' + kind, lambda: syscall('setns', os.open('/proc/1/ns/' + kind, os.O_RDONLY), 0), MISSING)
refused('enter by a process', lambda: syscall('setns', syscall('pidfd_open', 1, 0), 0x20000))
refused('leave the user namespace by its parent', lambda: __import__('fcntl').ioctl(os.open('/proc/self/ns/user', os.O_RDONLY), 0xb702))
refused('leave the process namespace by its parent', lambda: __import__('fcntl').ioctl(os.open('/proc/self/ns/pid', os.O_RDONLY), 0xb702))
";
const ROOTS: &str = "
os.makedirs('new/old', exist_ok=True)
refused('chroot', lambda: os.chroot('new'))
refused('chroot to /proc/1/root', lambda: os.chroot('/proc/1/root'))
refused('pivot_root', lambda: syscall('pivot_root', b'new', b'new/old'))
here = os.open('/', os.O_RDONLY)
hold('nothing is above the root', os.stat('/..').st_ino == os.stat('/').st_ino and os.path.samestat(os.fstat(os.open('..', 0, dir_fd=here)), os.stat('/')))
";
/// Reads a file of the host by every path that might lead there.
const PATHS: &str = "
ways = ['', '/..', '/../../../../..', '/proc/self/fd/0/..', '/dev/fd/../../..', '/workspace/../..', '/workspace/..', '/mnt/host', '/host', '/.old',
        '/old_root', '/oldroot', '/run/host']
ways += [f'/proc/{who}/{link}{up}' for who in ('self', 'thread-self', '1') for link in ('root', 'cwd') for up in ('', '/..', '/../..')]
ways += [f'/proc/{name}/root' for name in os.listdir('/proc') if name.isdigit()]
ways += [f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')]
seen = []
for way in ways:
    for ending in ('/secret', '/../outside/secret'):
        try: seen.append(way + ' ' + open(way + OUTSIDE + ending).read())
        except OSError: pass
hold(f'no way of {len(ways) > 15} leads outside {seen}', not seen)
";
/// The old way out of Docker: a handle of the host's root, made by hand.
const HANDLES: &str = "
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('handle', ctypes.c_ubyte * 128)]
own, mount = Handle(128, 0), ctypes.c_int()
try: syscall('name_to_handle_at', -100, b'/workspace', ctypes.byref(own), ctypes.byref(mount), 0)
except OSError as error: print('no handle:', error)
folder = os.open('/workspace', os.O_RDONLY)
refused('open an own handle', lambda: syscall('open_by_handle_at', folder, ctypes.byref(own), os.O_RDONLY))
for inode in (1, 2, 128, 256):
    handle = Handle(8, 1, (ctypes.c_ubyte * 128)(*inode.to_bytes(8, sys.byteorder)))
    refused(f'open inode {inode} of the host', lambda: syscall('open_by_handle_at', folder, ctypes.byref(handle), os.O_RDONLY))
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, ClosedByDefault, shows);
    vec![
        row("mount", "no file system can be mounted, bound, moved or remounted")
            .runs(python(MOUNT), all_held(17)),
        row("mount-new-calls", "the newer calls for mounting are shut as well")
            .runs(python(NEW_MOUNT), all_held(5)),
        row("unmount", "nothing can be unmounted, least of all what hides something")
            .runs(python(UNMOUNT), all_held(9)),
        row("namespaces", "no namespace can be made, by any of the three calls")
            .runs(python(NAMESPACES), all_held(25)),
        row("namespaces-entered", "no namespace can be entered").runs(python(SETNS), all_held(19)),
        row("roots", "the root cannot be changed, and nothing is above it").runs(python(ROOTS), all_held(4)),
        row("paths-outside", "no path leads to a file of the host").runs(python(PATHS), all_held(1)),
        row("file-handles", "no file can be opened by its handle").runs(python(HANDLES), all_held(5)),
    ]
}
