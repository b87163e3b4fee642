//! What a build says and answers, and that the same input is the same image.

use std::fs;

use super::flat::Flat;
use super::shop::Shop;
use crate::ground::tool;

#[test]
fn the_same_input_is_the_same_image() {
    let (one, other) = (Shop::new(), Shop::new());
    let lines = "FROM BASE\nCOPY a /x/\nRUN useradd -m app && date > /dev/null && touch /x/b && mkdir /x/c\nUSER app\n";
    let digests: Vec<String> = [&one, &other]
        .into_iter()
        .map(|shop| {
            shop.dockerfile(lines);
            shop.put("a", "text");
            std::thread::sleep(std::time::Duration::from_millis(1100));
            shop.build(&["--no-cache"]).stdout
        })
        .collect();
    assert_eq!(digests[0], digests[1]);
    let told = one.build(&["--verify"]);
    assert_eq!((told.code, told.stdout.as_str()), (0, digests[0].as_str()), "{told:?}");
    let times = tool(
        "find",
        &[".", "-newermt", "1971-01-01", "-path", "*/tree/x/*"],
        &one.ground.path("home/images/layers"),
    );
    assert_eq!(times, "", "a file has a time of its own");
}

#[test]
fn what_differs_is_named() {
    let shop = Shop::new();
    shop.dockerfile("FROM BASE\nRUN echo same > /x\nRUN head -c 8 /dev/urandom > /y\n");
    let told = shop.build(&["--verify"]);
    assert_eq!(told.code, 6, "{told:?}");
    assert!(told.stderr.contains("urandom") && told.stderr.contains("[build-differs]"), "{told:?}");
    assert!(told.stderr.contains("`/y` has other content"), "{told:?}");
}

#[test]
fn mounts_of_steps_leave_nothing_in_the_image() {
    let shop = Shop::new();
    shop.dockerfile(
        "FROM BASE AS other\nRUN echo from a stage > /stage\nFROM BASE\n\
         RUN --mount=type=secret,id=token cat /run/secrets/token | tr a-z A-Z > /seen && stat -c '%a %u' /run/secrets/token >> /seen\n\
         RUN --mount=type=secret,id=token,env=TOKEN test ${#TOKEN} = 8\n\
         RUN --mount=type=cache,target=/var/cache/mine echo once >> /var/cache/mine/log; cat /var/cache/mine/log | wc -l\n\
         RUN --mount=type=bind,source=sub,target=/in ls /in > /list; touch /in/no 2>/dev/null && echo BAD >> /list; true\n\
         RUN --mount=type=bind,from=other,source=/stage,target=/run/deep/er/file cat /run/deep/er/file > /copy\n\
         RUN --mount=type=bind,source=sub,target=/in,rw touch /in/thrown-away\n\
         RUN --mount=type=tmpfs,target=/mem,size=1m dd if=/dev/zero of=/mem/x bs=1k count=2000 2>/dev/null || df -k /mem | tail -1 | awk '{print $2}' > /size\n\
         RUN <<EOF\necho several > /doc\necho lines >> /doc\nEOF\n\
         RUN <<EOF\n#!/usr/bin/env python3\nopen('/py', 'w').write('python')\nEOF\n",
    );
    shop.put("sub/a", "a");
    shop.put("sub/hidden", "h");
    shop.put(".dockerignore", "sub/hidden\n");
    shop.ground.write("token", "hushhush");
    let token = format!("id=token,src={}", shop.ground.path("token").display());
    let told = shop.build(&["--secret", &token]);
    assert_eq!(told.code, 0, "{told:?}");
    let made = shop.flat(told.stdout.trim());
    let is = |path: &str, text: &str| {
        assert!(made.at(path).ends_with(&Flat::content(text)), "{path}: {}\n{told:?}", made.at(path))
    };
    is("seen", "HUSHHUSH400 0\n");
    is("list", "a\n");
    is("copy", "from a stage\n");
    is("doc", "several\nlines\n");
    is("py", "python");
    is("size", "1024\n");
    for path in ["run/secrets", "run/secrets/token", "var/cache/mine", "in", "mem", "run/deep", "dev/pipes"] {
        assert_eq!(made.at(path), "nothing", "{path}");
    }
    assert!(!told.stderr.contains("hushhush"), "{told:?}");
    let again = shop.build(&["--secret", &token, "--no-cache"]);
    assert!(again.stderr.lines().any(|line| line.trim() == "2"), "the cache is kept: {again:?}");
    // Nowhere on the disk, but where the caller put it.
    let found = tool("bash", &["-c", "grep -rl hushhush home || true"], shop.ground.base());
    assert_eq!(found, "");
    shop.dockerfile("FROM BASE\nRUN --mount=type=secret,id=token,required=true true\n");
    let told = shop.build(&["--no-cache"]);
    assert!(told.code != 0 && told.stderr.contains("--secret id=token"), "{told:?}");
}

#[test]
fn only_what_a_step_changed_is_in_its_layer() {
    let shop = Shop::new();
    shop.dockerfile("FROM BASE\nRUN cat /etc/hosts /etc/resolv.conf /etc/hostname > /dev/null; ls -R /tmp /root > /dev/null\nRUN touch /etc/new\nRUN useradd u\n");
    let made = shop.make(&[]);
    assert_eq!(made.layers.len(), 3, "{:?}", made.layers[1..].to_vec());
    assert_eq!(made.layers[1], ["", "etc", "etc/new"], "{:?}", made.layers[1]);
    let strange = ["etc/hosts", "etc/resolv.conf", "etc/hostname", "dev", "proc", "sys", "tmp"];
    assert!(!made.layers[2].iter().any(|path| strange.contains(&path.as_str())), "{:?}", made.layers[2]);
    let lines = tool(
        "bash",
        &["-c", "cat home/images/layers/sha256/*/tree/etc/passwd | grep -c runner || true"],
        shop.ground.base(),
    );
    assert_eq!(lines, "0");
}

#[test]
fn failures_name_the_step_and_refusals_the_rule() {
    let shop = Shop::new();
    shop.dockerfile("FROM BASE\nRUN echo fine\nRUN echo one; echo two >&2; exit 7\n");
    let told = shop.build(&[]);
    assert_eq!(told.code, 1, "{told:?}");
    for part in ["step 2 of 2", "line 3", "exit code 7", "one", "two", "[build-failed]"] {
        assert!(told.stderr.contains(part), "{part}: {told:?}");
    }
    shop.dockerfile("FROM debian:latest\nRUN --network=host curl x | sh\n");
    for arguments in [&[][..], &["--check"]] {
        let told = shop.build(arguments);
        assert_eq!(told.code, 2, "{told:?}");
        let all = told.stdout + &told.stderr;
        assert!(
            all.contains("BJ005 line 1") && all.contains("BJ003 line 2") && all.contains("BJ009 line 2"),
            "{all}"
        );
    }
    // What is not in the store is asked for where its name says; and a path is no name.
    for (base, code, part) in [
        ("127.0.0.1:1/nobody/has:this", 4, "[registry-unreachable]"),
        ("./etc/hostname:1", 2, "[image-unknown]"),
    ] {
        shop.dockerfile(&format!("FROM {base}\nRUN true\n"));
        let told = shop.build(&[]);
        assert!(told.code == code && told.stderr.contains(part), "{base}: {told:?}");
    }
    for (lines, part) in [
        ("FROM --platform=linux/s390x BASE\nRUN true", "linux/s390x"),
        ("FROM BASE\nADD https://example.org/x /x", "ADD from afar"),
        ("FROM BASE\nUSER nobody-at-all\nRUN true", "nobody is called"),
        ("FROM BASE\nCOPY missing /", "`missing` is not there"),
        ("FROM BASE\nRUN --mount=type=tmpfs,target=/dev/x true", "nothing can be mounted"),
        ("FROM BASE\nONBUILD RUN x", "ONBUILD"),
    ] {
        shop.dockerfile(lines);
        let told = shop.build(&[]);
        assert!(told.code != 0 && told.stderr.contains(part), "{lines}: {told:?}");
    }
}

#[test]
fn results_are_used_again_and_names_and_arguments_count() {
    let shop = Shop::new();
    shop.dockerfile("FROM BASE\nARG A=0\nRUN echo $A > /x\nCOPY a /a\nRUN cat /a > /b\n");
    shop.put("a", "1");
    let cached = |told: &str| told.lines().filter(|line| line.trim().starts_with("cached")).count();
    let (code, first) = {
        let output = shop.command(&["--json", "-t", "mine:1"]).output().unwrap();
        (output.status.code().unwrap(), serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap())
    };
    assert_eq!((code, first["names"][0].as_str().unwrap().ends_with("library/mine:1")), (0, true), "{first}");
    assert_eq!(first["layers"], 4);
    let again = shop.build(&[]);
    assert_eq!(
        (cached(&again.stderr), again.stdout.trim()),
        (3, first["image"].as_str().unwrap()),
        "{again:?}"
    );
    let other = shop.build(&["--build-arg", "A=5", "--build-arg", "UNKNOWN=1"]);
    assert_eq!(cached(&other.stderr), 0, "{other:?}");
    assert!(other.stderr.contains("UNKNOWN"), "{other:?}");
    shop.put("a", "2");
    assert_eq!(cached(&shop.build(&[]).stderr), 1);
    // The image that was named can be built on.
    shop.dockerfile("FROM mine:1\nRUN cat /b > /c\n");
    assert!(shop.make(&[]).at("c").ends_with(&Flat::content("1")));
    fs::write(
        shop.context().join("Dockerfile"),
        "FROM mine:1 AS one\nRUN touch /one\nFROM mine:1\nRUN exit 1\n",
    )
    .unwrap();
    assert!(shop.make(&["--target", "one"]).at("one").starts_with("file"));
}
