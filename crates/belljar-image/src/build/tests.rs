use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;
use crate::store::{Owners, Store};

fn ended(exit_code: i32) -> RunEnd {
    RunEnd { exit_code, reason: None, owners: crate::pack::Owners::Fixed { uid: 0, gid: 0 } }
}

/// Does what a few commands say, in the upper folder; the real one is a sandbox of another crate.
#[derive(Default)]
struct Writer {
    steps: Vec<RunStep>,
}

impl Runner for Writer {
    fn run(
        &mut self,
        step: &RunStep,
        lower: &[PathBuf],
        upper: &Path,
        output: &mut dyn FnMut(&[u8]),
    ) -> Result<RunEnd, Box<dyn std::error::Error + Send + Sync>> {
        self.steps.push(step.clone());
        let line = step.command.last().map_or("", String::as_str);
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["fail", code] => {
                (0..30).for_each(|number| output(format!("line {number}\n").as_bytes()));
                return Ok(ended(code.parse()?));
            }
            ["write", name] => fs::write(upper.join(name), format!("{} layers below", lower.len()))?,
            ["random", name] => fs::write(upper.join(name), format!("{:?}", std::time::Instant::now()))?,
            _ => {}
        }
        Ok(ended(0))
    }
}

struct Ground {
    folder: tempfile::TempDir,
}

impl Ground {
    fn new() -> Ground {
        let folder = tempfile::tempdir().unwrap();
        for name in ["context", "cache", "store"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::set_permissions(folder.path().join("store"), fs::Permissions::from_mode(0o700)).unwrap();
        Ground { folder }
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.folder.path().join("context").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    }

    fn spec(&self, dockerfile: &str) -> BuildSpec {
        BuildSpec {
            dockerfile: Dockerfile::parse(dockerfile).unwrap(),
            context: Some(self.folder.path().join("context")),
            ignore: Ignore::default(),
            target: None,
            arguments: BTreeMap::new(),
            platform: Platform { architecture: "amd64".into(), os: "linux".into(), variant: None },
            epoch: 0,
            cache: Cache::Use,
        }
    }

    fn build(&self, spec: &BuildSpec) -> Result<Outcome, BuildError> {
        let store = Store::open(&self.folder.path().join("store"), Owners::Exact).unwrap();
        let mut depot = StoreDepot::new(&store, &self.folder.path().join("cache")).unwrap();
        let (mut runner, mut told) = (Writer::default(), Vec::new());
        let mut events = |event: BuildEvent<'_>| match event {
            BuildEvent::Cached => told.push("cached".to_owned()),
            BuildEvent::Step { number, total, .. } => told.push(format!("{number}/{total}")),
            BuildEvent::Output(_) | BuildEvent::Done { .. } => {}
        };
        let built = build(spec, &mut depot, &mut runner, &mut events)?;
        let image = store.image(&built.digest.to_string()).unwrap().unwrap();
        Ok(Outcome { built, trees: image.layers, told, steps: runner.steps })
    }

    fn make(&self, dockerfile: &str) -> Outcome {
        self.build(&self.spec(dockerfile)).unwrap_or_else(|error| panic!("{dockerfile}: {error}"))
    }

    fn refusal(&self, dockerfile: &str) -> String {
        self.build(&self.spec(dockerfile)).map(|_| ()).unwrap_err().to_string()
    }
}

#[derive(Debug)]
struct Outcome {
    built: Built,
    trees: Vec<PathBuf>,
    told: Vec<String>,
    steps: Vec<RunStep>,
}

impl Outcome {
    /// Every file, folder and link of all layers.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        for tree in &self.trees {
            list(tree, tree, &mut files);
        }
        files.sort();
        files
    }
}

fn list(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let meta = path.symlink_metadata().unwrap();
        if meta.is_dir() {
            list(root, &path, files);
        } else if meta.is_symlink() {
            files.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
        } else {
            files.push(name);
        }
    }
}

#[test]
fn copies_follow_dockers_rules_for_places() {
    let ground = Ground::new();
    for path in ["a.txt", "b.txt", "dir/c", "dir/sub/d"] {
        ground.put(path, path);
    }
    symlink("c", ground.folder.path().join("context/dir/link")).unwrap();
    for (line, expected) in [
        ("COPY a.txt /x", &["x"][..]),
        ("COPY a.txt /x/", &["x/a.txt"]),
        ("COPY a.txt .", &["a.txt"]),
        ("WORKDIR /w\nCOPY a.txt .", &["w/a.txt"]),
        ("WORKDIR /w\nCOPY a.txt x/y", &["w/x/y"]),
        ("COPY dir /x", &["x/c", "x/link -> c", "x/sub/d"]),
        ("COPY dir/ /x/", &["x/c", "x/link -> c", "x/sub/d"]),
        ("COPY dir/link /x", &["x"]),
        ("COPY *.txt /x/", &["x/a.txt", "x/b.txt"]),
        ("COPY d*/s*/d /x/", &["x/d"]),
        ("COPY a.txt dir /x/", &["x/a.txt", "x/c", "x/link -> c", "x/sub/d"]),
        ("COPY --exclude=sub --exclude=link dir /x", &["x/c", "x/link -> c", "x/sub/d"]),
        ("COPY --exclude=dir/sub --exclude=*/link dir /x", &["x/c"]),
        ("COPY ../../a.txt /x", &["x"]),
        ("ADD a.txt /x", &["x"]),
        ("COPY a.txt /x/\nCOPY b.txt /x", &["x/a.txt", "x/b.txt"]),
        ("COPY <<E1 <<E2 /x/\none\nE1\ntwo\nE2", &["x/E1", "x/E2"]),
    ] {
        assert_eq!(ground.make(&format!("FROM scratch\n{line}")).files(), expected, "{line}");
    }
}

#[test]
fn owners_modes_and_times_are_set() {
    let ground = Ground::new();
    ground.put("passwd", "root:x:0:0::/:/bin/sh\nbob:x:1001:7::/:/bin/sh\n");
    ground.put("group", "staff:x:50:\n");
    ground.put("file", "text");
    let users = "FROM scratch\nCOPY passwd /etc/passwd\nCOPY group /etc/group\n";
    for (flags, expected) in [
        ("", (0, 0, 0o640)),
        ("--chown=5", (5, 5, 0o640)),
        ("--chown=5:6", (5, 6, 0o640)),
        ("--chown=bob", (1001, 1001, 0o640)),
        ("--chown=bob:staff", (1001, 50, 0o640)),
        ("--chmod=755 --chown=root:staff", (0, 50, 0o755)),
    ] {
        let made = ground.make(&format!("{users}COPY {flags} file /new/file"));
        let meta = made.trees[2].join("new/file").metadata().unwrap();
        assert_eq!((meta.mtime(), meta.mode() & 0o7777), (0, expected.2), "{flags}");
        // Only root can give files away; others keep what the archive says for export.
        if rustix::process::geteuid().is_root() {
            assert_eq!((meta.uid(), meta.gid()), (expected.0, expected.1), "{flags}");
            assert_eq!(made.trees[2].join("new").metadata().unwrap().uid(), expected.0, "{flags}");
        }
    }
    assert!(ground.refusal(&format!("{users}COPY --chown=eve file /x")).contains("eve"));
    assert!(ground.refusal("FROM scratch\nCOPY --chmod=u+x passwd /x").contains("octal"));
}

#[test]
fn what_cannot_be_copied_is_refused_with_its_step() {
    let ground = Ground::new();
    ground.put("a", "");
    ground.put("b", "");
    ground.put("dir/x", "");
    ground.put(".wh.a", "");
    symlink("/etc", ground.folder.path().join("context/out")).unwrap();
    for (line, part) in [
        ("COPY none /x", "not there"),
        ("COPY n* /x", "not there"),
        ("COPY out/passwd /x", "not there"),
        ("COPY a b /x", "end it with `/`"),
        ("COPY ? /x", "end it with `/`"),
        ("COPY .wh.a /x/", "deletion"),
        ("COPY --parents a /x", "--parents"),
        ("COPY dir /x/\nCOPY a /x/x/y", "not a folder"),
        ("COPY dir /a/\nCOPY a /", "a folder"),
        ("ADD https://x.example/y /x", "from afar"),
        ("COPY --from=later a /x", "not in the store"),
        ("RUN fail 3", "exit code 3"),
    ] {
        let told = ground.refusal(&format!("FROM scratch\n{line}"));
        assert!(told.contains(part) && told.contains("step"), "{line}: {told}");
    }
    assert!(ground.refusal("FROM scratch\nCOPY --from=7 a /x").contains("no stage `7`"));
    let told = ground.refusal("FROM scratch\nRUN fail 3");
    assert!(told.contains("line 29") && !told.contains("line 9\n"), "{told}");
}

#[test]
fn patterns_hide_files_of_the_context() {
    let ground = Ground::new();
    for path in ["keep", "drop", "dir/drop", "dir/keep", "gone/x"] {
        ground.put(path, "");
    }
    let mut spec = ground.spec("FROM scratch\nCOPY . /");
    spec.ignore = Ignore::parse("drop\ndir\n!dir/keep\ngone").unwrap();
    assert_eq!(ground.build(&spec).unwrap().files(), ["dir/keep", "keep"]);
    spec.dockerfile = Dockerfile::parse("FROM scratch\nCOPY drop /").unwrap();
    assert!(ground.build(&spec).unwrap_err().to_string().contains("left out"));
}

#[test]
fn instructions_become_the_configuration() {
    let ground = Ground::new();
    let made = ground.make(concat!(
        "ARG G=1\nFROM scratch\nARG G\nARG A=${G}2 B\nENV X=$A Y=\"a b\"\nENV X=3 Z=$X\nLABEL l=$Z\n",
        "EXPOSE 80 90-91/udp\nUSER u:$G\nVOLUME /v\nSTOPSIGNAL 9\nSHELL [\"/b\", \"-c\"]\nCMD run $X\n",
        "ENTRYPOINT [\"e\"]\nHEALTHCHECK --interval=5s CMD h\n",
    ));
    let settings = &made.built.config.config;
    assert_eq!(settings.env[1..], ["X=3", "Y=a b", "Z=12"]);
    assert_eq!(settings.labels["l"], "12");
    assert_eq!(settings.exposed_ports.keys().collect::<Vec<_>>(), ["80/tcp", "90/udp", "91/udp"]);
    assert_eq!((settings.user.as_str(), settings.stop_signal.as_deref()), ("u:1", Some("9")));
    assert_eq!(settings.cmd.as_ref().unwrap()[..], ["/b", "-c", "run $X"]);
    assert_eq!(settings.entrypoint.as_ref().unwrap()[..], ["e"]);
    let check = serde_json::json!({"Test": ["CMD-SHELL", "h"], "Interval": 5_000_000_000_u64});
    assert_eq!(settings.healthcheck.as_ref().unwrap(), &check);
    let history: Vec<&str> = made.built.config.history.iter().map(|step| step.created_by.as_str()).collect();
    assert_eq!(history[2], "/bin/sh -c #(nop)  ENV X=12 Y=a b");
    assert!(made.built.config.history.iter().all(|step| step.empty_layer));
    assert_eq!(made.built.config.created.as_deref(), Some("1970-01-01T00:00:00Z"));
}

#[test]
fn only_needed_stages_are_built_and_can_be_copied_from() {
    let ground = Ground::new();
    ground.put("a", "text");
    let file = concat!(
        "FROM scratch AS one\nCOPY a /from/one\nFROM scratch AS unused\nRUN fail 1\n",
        "FROM one AS two\nRUN write two\nFROM scratch\nCOPY --from=one /from/one /x\nCOPY --from=2 / /all/\n",
    );
    let made = ground.make(file);
    assert_eq!(made.files(), ["all/from/one", "all/two", "x"]);
    assert_eq!(made.told, ["1/4", "2/4", "3/4", "4/4"]);
    let mut spec = ground.spec(file);
    spec.target = Some("TWO".to_owned());
    assert_eq!(ground.build(&spec).unwrap().files(), ["from/one", "two"]);
    spec.target = Some("three".to_owned());
    assert!(ground.build(&spec).unwrap_err().to_string().contains("no stage `three`"));
}

#[test]
fn results_are_used_again_while_nothing_they_depend_on_changed() {
    let ground = Ground::new();
    ground.put("a", "1");
    let file = "FROM scratch\nARG V\nCOPY a /a\nRUN write b\n";
    let cached = |outcome: &Outcome| outcome.told.iter().filter(|told| *told == "cached").count();
    let first = ground.make(file);
    assert_eq!(cached(&first), 0);
    let again = ground.make(file);
    assert_eq!((cached(&again), again.steps.len()), (2, 0));
    assert_eq!(again.built.digest, first.built.digest);
    let mut spec = ground.spec(file);
    spec.arguments.insert("V".to_owned(), "2".to_owned());
    spec.arguments.insert("NOBODY".to_owned(), "2".to_owned());
    let other = ground.build(&spec).unwrap();
    assert_eq!((cached(&other), other.built.unused.as_slice()), (1, &["NOBODY".to_owned()][..]));
    let mut later = ground.spec(file);
    later.epoch = 1;
    assert_eq!(cached(&ground.build(&later).unwrap()), 0);
    ground.put("a", "2");
    assert_eq!(cached(&ground.make(file)), 0);
    spec.cache = Cache::Ignore;
    assert_eq!(cached(&ground.build(&spec).unwrap()), 0);
}

#[test]
fn commands_get_variables_mounts_and_documents() {
    let ground = Ground::new();
    ground.put("src/a", "1");
    let made = ground.make(concat!(
        "FROM scratch\nARG A=1\nENV A=2 E=$A\nARG B=3\nWORKDIR /w\nUSER u\n",
        "RUN --mount=type=bind,source=src,target=m --mount=type=cache,target=/c --network=none x\n",
        "RUN <<EOF\nline\nEOF\nRUN <<EOF\n#!/x\nEOF\nRUN cat <<A - <<B\n1\nA\n2\nB\n",
    ));
    let [run, text, file, both] = &made.steps[..] else { panic!("{:?}", made.steps) };
    assert_eq!(run.command, ["/bin/sh", "-c", "x"]);
    let variables: Vec<String> =
        run.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!((variables[0].as_str(), &variables[2..]), ("B=3", &["A=2".to_owned(), "E=1".to_owned()][..]));
    assert_eq!((run.user.as_str(), run.workdir.as_str()), ("u", "/w"));
    assert!(
        matches!(&run.mounts[0], StepMount::Bind { target, source, .. } if target == "/w/m" && source == "src")
    );
    assert_eq!(text.command[2], "line\n");
    assert_eq!((file.command[2].as_str(), file.files[0].text.as_str()), ("/dev/pipes/EOF", "#!/x\n"));
    assert_eq!(both.command[2], "cat <<A - <<B\n1\nA\n2\nB");
    assert_eq!(made.built.config.rootfs.diff_ids.len(), 1, "commands that change nothing make no layer");
}

#[test]
fn builds_are_compared_with_themselves() {
    let grounds = [Ground::new(), Ground::new()];
    let stores =
        grounds.each_ref().map(|g| Store::open(&g.folder.path().join("store"), Owners::Exact).unwrap());
    let compare = |file: &str| {
        let cache = grounds.each_ref().map(|ground| ground.folder.path().join("cache"));
        let mut one = StoreDepot::new(&stores[0], &cache[0]).unwrap();
        let mut other = StoreDepot::new(&stores[1], &cache[1]).unwrap();
        let spec = grounds[0].spec(file);
        verify(&spec, [&mut one, &mut other], &mut Writer::default(), &mut |_| {})
    };
    compare("FROM scratch\nRUN write a\nWORKDIR /w").unwrap();
    let told = compare("FROM scratch\nRUN write a\nRUN random b").unwrap_err().to_string();
    assert!(told.contains("random b"), "{told}");
}
