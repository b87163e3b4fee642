//! Steps that want out, or want too much.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use belljar_image::store::{Depth, Mend};

use super::flat::Flat;
use super::shop::Shop;
use crate::remains::{self, Process};

/// Against a hang only.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_step_does_not_get_out() {
    let shop = Shop::new();
    let secret = shop.ground.write("secret-of-the-host", "do not read");
    let told = shop.run(&format!(
        "mount -t tmpfs x /mnt && echo BAD; umount /proc && echo BAD; mknod /dev/x b 1 1 && echo BAD; \
         mknod /x c 1 1 && echo BAD; unshare -U true && echo BAD; cat {} && echo BAD; \
         echo 1 > /proc/sys/kernel/core_pattern && echo BAD; echo b > /proc/sysrq-trigger && echo BAD; \
         cat /proc/1/environ && echo BAD; kill -9 1; nsenter -t 1 -m true && echo BAD; \
         ls /proc/1/root && echo BAD; hostname other && echo BAD; date -s 2000-01-01 && echo BAD; \
         dmesg && echo BAD; chroot /proc/1/root true && echo BAD; echo still here",
        secret.display()
    ));
    let printed: Vec<&str> = told.lines().filter(|line| line.starts_with("      ")).collect();
    assert!(printed.iter().any(|line| line.trim() == "still here"), "{told}");
    assert!(!printed.iter().any(|line| line.trim() == "BAD"), "{told}");
    assert!(!told.contains("do not read"), "{told}");
}

#[test]
fn a_step_has_no_network_and_no_raw_packets() {
    let shop = Shop::new();
    let script = "import socket\nfor f in (lambda: socket.create_connection(('192.0.2.1', 80), 3), \
                  lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1), \
                  lambda: socket.getaddrinfo('example.org', 80)):\n  try: f(); print('BAD')\n  except OSError as e: print('refused', e)\n";
    shop.dockerfile("FROM BASE\nCOPY try.py /\nRUN python3 /try.py; cat /proc/net/dev | tail -n +3\n");
    shop.put("try.py", script);
    let told = shop.build(&["--no-cache"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert_eq!(told.stderr.matches("refused").count(), 3, "{told:?}");
    assert!(!told.stderr.contains("BAD") && told.stderr.contains("lo:"), "{told:?}");
}

/// Files with set-user-id bits, on the disk, are out of everybody's reach, and root inside is nobody outside.
#[test]
fn what_a_step_leaves_is_out_of_reach_and_what_it_is_outside_is_nobody() {
    let shop = Shop::new();
    shop.dockerfile("FROM BASE\nRUN cp /bin/bash /x && chmod 4755 /x && sleep 5\n");
    let mut building =
        shop.command(&["--no-cache"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let scratch = shop.ground.path("home/images/scratch");
    let deadline = Instant::now() + PATIENCE;
    let found = loop {
        let entries = crate::ground::entries(&scratch);
        let file =
            entries.iter().flat_map(|made| crate::ground::entries(made)).map(|step| step.join("upper/x"));
        let file = file.filter_map(|file| fs::metadata(file).ok()).find(|meta| meta.mode() & 0o4000 != 0);
        if let Some(meta) = file {
            break meta;
        }
        assert!(Instant::now() < deadline, "the step wrote nothing");
        thread::sleep(Duration::from_millis(5));
    };
    assert!(found.uid() >= 0x4000_0000, "root inside is {} outside", found.uid());
    assert_eq!(fs::metadata(shop.ground.path("home/images")).unwrap().mode() & 0o077, 0);
    assert!(building.wait().unwrap().success());
}

#[test]
fn a_step_is_killed_at_its_limits_with_all_that_it_started() {
    let shop = Shop::new();
    shop.dockerfile("FROM BASE\nRUN echo early; sleep 600 & sleep 600\n");
    let told = shop.build(&["--timeout", "1s"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.stderr.contains("was killed after 1 s") && told.stderr.contains("early"), "{told:?}");
    shop.dockerfile("FROM BASE\nRUN python3 -c 'x = bytearray(1 << 30); print(len(x))'\n");
    let told = shop.build(&["--memory", "64m"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.stderr.contains("ran out of memory: a step may use 64 MiB"), "{told:?}");
    shop.dockerfile("FROM BASE\nRUN for i in $(seq 100); do sleep 600 & done; echo all; exit 3\n");
    let told = shop.build(&["--pids", "20"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert_eq!(shop.ground.cells(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_killed_build_leaves_nothing_and_the_next_one_works() {
    let shop = Shop::new();
    let mark = format!("mark-{}", shop.ground.base().file_name().unwrap().to_string_lossy());
    let lines =
        format!("FROM BASE\nRUN touch /before\nRUN echo {mark} > /x; sleep 3 & sleep 2\nRUN touch /after\n");
    for moment in [0, 30, 80, 150, 300, 600, 1200] {
        shop.dockerfile(&lines);
        let mut command = shop.command(&["--no-cache"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(moment));
        let known: Vec<Process> = Process::living(i32::try_from(child.id()).unwrap()).into_iter().collect();
        child.kill().unwrap();
        child.wait().unwrap();
        let when = format!("killed after {moment} ms");
        remains::expect_gone(&known, std::slice::from_ref(&mark), &when);
        assert_eq!(remains::mounts_below(shop.ground.base()), [] as [String; 0], "{when}");
        let (code, answer) = shop.ground.ask(&["gc"]);
        assert_eq!(code, 0, "{when}: {answer}");
        assert_eq!(shop.ground.cells(), [] as [std::path::PathBuf; 0], "{when}");
        let report = shop.store().fsck(Depth::Quick, Mend::No).unwrap();
        assert!(report.is_clean(), "{when}: {report:?}");
        assert_eq!(crate::ground::entries(&shop.ground.path("home/images/scratch")).len(), 0, "{when}");
    }
    let made = shop.make(&[]);
    assert!(made.at("x").ends_with(&Flat::content(&format!("{mark}\n"))), "{:?}", made.at("x"));
    assert!(made.at("after").starts_with("file"));
}
