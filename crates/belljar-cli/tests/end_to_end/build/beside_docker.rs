//! The same Dockerfiles by Docker's own builder and by Belljar: the same files, the same configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_image::oci::ImageConfig;

use super::flat::Flat;
use super::shop::{Shop, docker};

/// Lines after FROM, and what of the result may differ.
struct Case {
    lines: &'static str,
    /// Paths that differ, each with its reason.
    may_differ: &'static [(&'static str, &'static str)],
}

const fn same(lines: &'static str) -> Case {
    Case { lines, may_differ: &[] }
}

const CASES: &[Case] = &[
    same("FROM BASE\nRUN mkdir -p /x/deep/er && echo hello > /x/deep/er/file"),
    same(
        "FROM BASE\nRUN mkdir /x && touch /x/a /x/b /x/c /x/d && chmod u+s /x/a && chmod 2755 /x/b && chmod 1777 /x && chmod 0 /x/c",
    ),
    same("FROM BASE\nRUN cp /bin/true /x && chmod 6755 /x && chown 1:2 /x && chmod 4711 /x"),
    same("FROM BASE\nRUN useradd -m app && mkdir /srv/x && chown -R app:app /srv/x && touch /srv/x/f"),
    same(
        "FROM BASE\nRUN groupadd -g 4321 g && useradd -u 1234 -g g -s /bin/bash -d /home/other -m u && usermod -aG g u",
    ),
    same(
        "FROM BASE\nRUN mkdir /x && cd /x && echo a > a && ln a b && ln -s a c && ln -s /nowhere d && mkfifo p",
    ),
    same(
        "FROM BASE\nRUN rm /etc/debian_version && rm -r /usr/share/doc /usr/share/bug 2>/dev/null; rm -rf /media",
    ),
    same(
        "FROM BASE\nRUN rm -rf /usr/share/keyrings && mkdir /usr/share/keyrings && echo new > /usr/share/keyrings/x",
    ),
    same("FROM BASE\nRUN rm -rf /srv && echo a file now > /srv"),
    same("FROM BASE\nRUN rm -f /etc/issue && mkdir /etc/issue && touch /etc/issue/x"),
    same(
        "FROM BASE\nRUN python3 -c \"import os; os.mkdir('/x'); [open('/x/'+n,'w').write(n) for n in ('sp ace','n\\u00e4me','-dash','a'*200)]\"",
    ),
    same(
        "FROM BASE\nARG A=1\nENV B=$A C=\"two words\"\nRUN echo $A $B \"$C\" > /x && env | sort | grep -v -e HOSTNAME -e PWD -e ^_ > /y",
    ),
    same("FROM BASE\nUSER 1234:5678\nRUN touch /tmp/mine && mkdir /tmp/x && id > /tmp/x/id"),
    same(
        "FROM BASE\nRUN useradd -m app\nUSER app\nWORKDIR /home/app\nRUN echo $HOME > where && pwd >> where",
    ),
    same("FROM BASE\nWORKDIR /x\nWORKDIR y\nRUN pwd > z\nWORKDIR ../w\nRUN touch here"),
    same("FROM BASE\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN a=(1 2 3); echo ${a[1]} > /x"),
    same(
        "FROM BASE\nRUN [\"touch\", \"/a b\", \"/$HOME\"]\nRUN [\"/bin/bash\", \"-c\", \"echo $0 > /x\", \"zero\"]",
    ),
    same("FROM BASE\nRUN echo one > /x \\\n  && echo two >> /x \\\n  # a remark\n  && echo three >> /x"),
    same("FROM BASE\nRUN echo more >> /etc/issue && chmod 600 /etc/motd; chown 5:6 /etc/hostname || true"),
    same("FROM BASE\nRUN umask 077 && mkdir /x && touch /x/y\nRUN mkdir /z"),
    same(
        "FROM BASE\nRUN dd if=/dev/zero of=/x bs=1024 count=3000 2>/dev/null && truncate -s 5000000 /sparse",
    ),
    same("FROM BASE\nRUN mv /usr/share/bash-completion /x 2>/dev/null; cp -a /etc/skel /y; mv /etc/skel /z"),
    same("FROM BASE\nRUN mkdir /x && tar -C /etc -cf - skel apt | tar -C /x -xf -"),
    same("FROM BASE\nRUN (sleep 600 &) ; nohup sleep 600 >/dev/null 2>&1 & echo done > /x"),
    same(
        "FROM BASE\nENV PATH=/opt/bin:$PATH\nRUN mkdir -p /opt/bin && printf '#!/bin/sh\\necho mine\\n' > /opt/bin/tool && chmod 755 /opt/bin/tool\nRUN tool > /x",
    ),
    same(
        "FROM BASE\nCOPY a /x/y/z\nCOPY sub /x/sub/\nCOPY --chown=7:8 *.txt /x/texts/\nRUN ls -lnR /x | grep -v total | awk '{print $1,$3,$4,$9}' > /list",
    ),
    same(
        "FROM BASE\nRUN useradd app\nCOPY --chown=app:app a /home/a\nCOPY a /lib/in-usr-lib\nRUN ls -ln /usr/lib/in-usr-lib | cut -c1-10 > /x",
    ),
    same(
        "FROM BASE\nADD plain.tar /x/\nADD packed.tar.gz /y/\nADD packed.tar.bz2 /z\nADD packed.tar.xz /w/\nADD a /v/\nADD empty.tar.gz.txt /u/",
    ),
    same("FROM BASE\nCOPY . /x/\nRUN rm -r /x/sub\nCOPY sub /x/sub"),
    same(
        "FROM BASE\nLABEL a=1 b=\"two words\"\nEXPOSE 80 90-91/udp\nVOLUME /v\nSTOPSIGNAL SIGINT\nENTRYPOINT [\"/bin/echo\", \"x\"]\nCMD [\"y\"]\nHEALTHCHECK --interval=5s --timeout=3s --retries=2 CMD true\nMAINTAINER me",
    ),
    same(
        "FROM BASE\nENTRYPOINT echo $HOME\nCMD [\"a\"]\nSHELL [\"/bin/bash\", \"-c\"]\nCMD b c\nUSER daemon\nRUN id > /tmp/id",
    ),
    same("FROM BASE\nRUN true\nRUN echo x > /dev/null\nENV A=1\nRUN false || true"),
    same(
        "FROM BASE\nRUN chroot / /bin/true && su daemon -s /bin/sh -c 'touch /tmp/by-daemon' && echo $? > /x",
    ),
    same("FROM BASE\nRUN rm -rf /x; mkdir /x; touch /x/1\nRUN rm -rf /x; mkdir /x; touch /x/2\nRUN mv /x /y"),
    Case {
        lines: "FROM BASE\nVOLUME /v\nRUN mkdir -p /v && echo kept > /v/x",
        may_differ: &[(
            "v/x",
            "the classic builder throws away what a RUN writes to a volume; BuildKit and Belljar keep it",
        )],
    },
];

/// Builds; gives the image's id.
fn by_docker(context: &Path) -> String {
    let context = context.display().to_string();
    let built = docker(&["build", "-q", "--no-cache", "--network", "none", &context]);
    String::from_utf8(built).unwrap().trim().to_owned()
}

/// Reads images that Docker built, all at once because they share their base, and removes them.
fn saved(images: &[String]) -> Vec<Flat> {
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    let archive = docker(&[&["save"], &images[..]].concat());
    docker(&[&["rmi", "-f"], &images[..]].concat());
    Flat::all(&archive, &images)
}

/// Files to copy from, and archives with owners of their own.
fn furnish(shop: &Shop) {
    for file in ["a", "b.txt", "c.txt", "sub/d", "sub/e/f", "ignored/x", "empty.tar.gz.txt"] {
        shop.put(file, file);
        fs::set_permissions(shop.context().join(file), fs::Permissions::from_mode(0o640)).unwrap();
    }
    shop.put(".dockerignore", "ignored\n*.bak\n");
    let script = "mkdir -p t/in && echo 1 > t/in/one && ln -s in/one t/link && chmod 2750 t/in && chown -R 11:12 t/in \
        && for c in cf:plain.tar czf:packed.tar.gz cjf:packed.tar.bz2 cJf:packed.tar.xz; do \
        tar -C t -${c%%:*} ${c#*:} in link; done && rm -r t";
    crate::ground::tool("bash", &["-c", script], &shop.context());
}

/// What the history says, but for digests that are of another kind and texts that no other tool reads.
fn history(config: &ImageConfig) -> Vec<(String, bool)> {
    let steps = config.history.iter().filter(|step| !step.created_by.contains("HEALTHCHECK"));
    let text = |text: &str| text.split_once(" in /").map_or(text.to_owned(), |(_, to)| to.to_owned());
    steps.map(|step| (text(&step.created_by), step.empty_layer)).collect()
}

fn compare(case: &Case, ours: &Flat, theirs: &Flat) -> Vec<String> {
    let mut wrong = ours.differences(theirs);
    for (path, reason) in case.may_differ {
        let before = wrong.len();
        wrong.retain(|line| !line.starts_with(&format!("{path}: ")));
        if wrong.len() == before {
            wrong.push(format!("{path} is said to differ and does not: {reason}"));
        }
    }
    if ours.config.config != theirs.config.config {
        wrong.push(format!("settings: ours {:?}, theirs {:?}", ours.config.config, theirs.config.config));
    }
    let told = |config: &ImageConfig| (config.os.clone(), config.architecture.clone());
    if told(&ours.config) != told(&theirs.config) {
        wrong.push(format!("platform: ours {:?}", told(&ours.config)));
    }
    let (ours, theirs) = (history(&ours.config), history(&theirs.config));
    if ours != theirs {
        wrong.push(format!("history: ours {ours:?}, theirs {theirs:?}"));
    }
    wrong
}

/// Builds each case by both and compares.
fn expect_same(cases: &[Case]) {
    let shop = Shop::new();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for case in cases {
        shop.dockerfile(case.lines);
        furnish(&shop);
        ours.push(shop.make(&["--no-cache"]));
        theirs.push(by_docker(&shop.context()));
    }
    let theirs = saved(&theirs);
    let mut wrong = Vec::new();
    for ((case, ours), theirs) in cases.iter().zip(&ours).zip(&theirs) {
        let found = compare(case, ours, theirs);
        if !found.is_empty() {
            wrong.push(format!("{}\n    {}", case.lines, found.join("\n    ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn images_are_those_that_docker_builds() {
    expect_same(CASES);
}

#[test]
fn stages_are_those_that_docker_builds() {
    expect_same(&[
        same(
            "FROM BASE AS one\nRUN mkdir /out && echo 1 > /out/a && chown 3:4 /out/a && chmod 4755 /out/a && ln -s a /out/l\n\
             FROM BASE\nCOPY --from=one /out /x/\nCOPY --from=0 /out/a /y\n\
             RUN ls -ln /x | tail -n +2 | awk '{print $1,$3,$4}' > /list",
        ),
        same(
            "ARG V=one\nFROM BASE AS one\nRUN echo 1 > /x\nFROM BASE AS two\nRUN echo 2 > /x\nFROM $V\nRUN cp /x /y",
        ),
        same(
            "FROM BASE AS a\nRUN cp /bin/bash /tool\nFROM scratch\nCOPY --from=a /tool /bin/tool\nCMD [\"/bin/tool\"]",
        ),
    ]);
}
