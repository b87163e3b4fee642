use super::*;

fn steps(body: &str) -> Vec<Instruction> {
    let file = Dockerfile::parse(&format!("FROM scratch\n{body}")).unwrap();
    file.stages[0].steps.iter().map(|step| step.instruction.clone()).collect()
}

fn step(line: &str) -> Instruction {
    let [step] = steps(line).try_into().unwrap();
    step
}

fn problem(file: &str) -> String {
    Dockerfile::parse(file).unwrap_err().to_string()
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn stages_have_names_numbers_platforms_and_lines() {
    let file =
        "ARG V=1 W\n\nFROM --platform=$P a:$V AS Build\nRUN x\nFROM scratch\nCOPY --from=0 a b\nfrom build\n";
    let file = Dockerfile::parse(file).unwrap();
    assert_eq!(file.arguments.len(), 1);
    let told: Vec<_> =
        file.stages.iter().map(|stage| (stage.line, &*stage.image, stage.name.as_deref())).collect();
    assert_eq!(told, [(3, "a:$V", Some("build")), (5, "scratch", None), (7, "build", None)]);
    assert_eq!(file.stages[0].platform.as_deref(), Some("$P"));
    assert_eq!(file.stages[0].steps[0].line, 4);
}

#[test]
fn commands_have_two_forms_and_broken_lists_are_lines() {
    let list = CommandLine::List(texts(&["a", "b c"]));
    assert_eq!(step(r#"CMD ["a", "b c"]"#), Instruction::Cmd(list.clone()));
    assert_eq!(step(r#"ENTRYPOINT [ "a","b c" ]"#), Instruction::Entrypoint(list));
    assert_eq!(step("CMD ['a']"), Instruction::Cmd(CommandLine::Shell("['a']".to_owned())));
    assert_eq!(step("CMD []"), Instruction::Cmd(CommandLine::List(vec![])));
    assert_eq!(step("CMD"), Instruction::Cmd(CommandLine::List(vec![])));
    let Instruction::Run(run) = step("RUN [ -f x ] \\\n# c\n && echo \"a  b\"") else { panic!("no run") };
    assert_eq!(run.command, CommandLine::Shell("[ -f x ]  && echo \"a  b\"".to_owned()));
}

#[test]
fn variables_and_labels_have_two_forms() {
    assert_eq!(step("ENV a b c"), Instruction::Env(pairs(&[("a", "b c")])));
    assert_eq!(step("ENV a=b \\\n c='d e'"), Instruction::Env(pairs(&[("a", "b"), ("c", "'d e'")])));
    assert_eq!(step(r#"LABEL "a b"="c""#), Instruction::Label(pairs(&[("\"a b\"", "\"c\"")])));
    let argument =
        |name: &str, default: Option<&str>| Argument { name: name.into(), default: default.map(Into::into) };
    assert_eq!(
        step("ARG a b=c d='e f'"),
        Instruction::Arg(vec![argument("a", None), argument("b", Some("c")), argument("d", Some("'e f'"))])
    );
}

#[test]
fn copies_have_flags_lists_and_documents() {
    let copy =
        step(r#"COPY --from=build --chown=a:b --chmod=0755 --link --exclude=*.o --exclude=x ["a b", "c/"]"#);
    let Instruction::Copy(copy) = copy else { panic!("no copy") };
    assert_eq!(copy.sources, [Source::Path("a b".to_owned())]);
    assert_eq!((copy.destination.as_str(), copy.from.as_deref(), copy.link), ("c/", Some("build"), true));
    assert_eq!((copy.chown.as_deref(), copy.chmod.as_deref()), (Some("a:b"), Some("0755")));
    assert_eq!(copy.exclude, ["*.o", "x"]);
    let Instruction::Copy(copy) = step("COPY <<A <<\"B\" c /d/\none $x\nA\ntwo\nB") else {
        panic!("no copy")
    };
    let [Source::Document(a), Source::Document(b), Source::Path(c)] = &copy.sources[..] else {
        panic!("{copy:?}")
    };
    assert_eq!((&*a.text, a.expands, &*b.text, b.expands, &**c), ("one $x\n", true, "two\n", false, "c"));
    let Instruction::Add(add) = step("ADD --checksum=sha256:1 --keep-git-dir=true https://x/y /z") else {
        panic!("no add")
    };
    assert_eq!((add.checksum.as_deref(), add.keep_git_dir), (Some("sha256:1"), true));
}

#[test]
fn runs_have_mounts_networks_and_documents() {
    let run =
        step("RUN --mount=type=cache,target=/c --mount=type=secret,id=s --network=none --security=sandbox x");
    let Instruction::Run(run) = run else { panic!("no run") };
    assert_eq!((run.mounts.len(), run.network, run.security), (2, Network::None, Security::Sandbox));
    let Instruction::Run(run) = step("RUN <<EOF\na\nb\nEOF\n") else { panic!("no run") };
    assert_eq!((run.command, &*run.documents[0].text), (CommandLine::Shell("<<EOF".to_owned()), "a\nb\n"));
}

#[test]
fn the_rest_is_read_as_docker_reads_it() {
    assert_eq!(step("WORKDIR /a b"), Instruction::Workdir("/a b".to_owned()));
    assert_eq!(step("USER a:b"), Instruction::User("a:b".to_owned()));
    assert_eq!(step("EXPOSE 80 90-92/udp $p"), Instruction::Expose(texts(&["80", "90-92/udp", "$p"])));
    assert_eq!(step("VOLUME /a /b"), Instruction::Volume(texts(&["/a", "/b"])));
    assert_eq!(step(r#"VOLUME ["/a b"]"#), Instruction::Volume(texts(&["/a b"])));
    assert_eq!(step("MAINTAINER a <b@c>"), Instruction::Maintainer("a <b@c>".to_owned()));
    assert_eq!(step(r#"SHELL ["/bin/bash", "-c"]"#), Instruction::Shell(texts(&["/bin/bash", "-c"])));
    assert_eq!(step("STOPSIGNAL 9"), Instruction::Stopsignal("9".to_owned()));
    assert_eq!(step("HEALTHCHECK NONE"), Instruction::Healthcheck(Healthcheck::None));
    let health = step("HEALTHCHECK --interval=1m30s --timeout=1.5s --retries=3 CMD curl x");
    let expected = Healthcheck::Command {
        command: CommandLine::Shell("curl x".to_owned()),
        interval: 90_000_000_000,
        timeout: 1_500_000_000,
        start_period: 0,
        start_interval: 0,
        retries: 3,
    };
    assert_eq!(health, Instruction::Healthcheck(expected));
}

#[test]
fn times_are_read_as_go_writes_them() {
    assert_eq!(parse_duration("1h1m1s1ms1us1ns"), Some(3_661_001_001_001));
    assert_eq!(parse_duration(".5s"), Some(500_000_000));
    for wrong in ["", "5", "s", "1x", "-1s", "1.s.", "99999999999h", "1.0000000000000000000s"] {
        assert_eq!(parse_duration(wrong), None, "{wrong}");
    }
}

#[test]
fn mistakes_are_told_with_line_and_remedy() {
    for (file, parts) in [
        ("", ["line 1", "FROM"]),
        ("# only\n\n", ["line 1", "FROM"]),
        ("RUN x", ["line 1", "RUN stands before"]),
        ("FROM a\n\nRUM x", ["line 3", "did you mean `RUN`?"]),
        ("FROM a\nFETCHALL x", ["line 2", "`FETCHALL` is not"]),
        ("FROM a\nCOPY --form=x a b", ["line 2", "did you mean `--from`?"]),
        ("FROM a\nADD --from=x a b", ["line 2", "`--from` is not a flag"]),
        ("FROM a\nRUN --mount=type=ssh x", ["line 2", "ssh"]),
        ("FROM a\nRUN --network=all x", ["line 2", "default, none or host"]),
        ("FROM a\nRUN --security=none x", ["line 2", "sandbox or insecure"]),
        ("FROM a\nONBUILD RUN x", ["line 2", "ONBUILD"]),
        ("FROM a\nRUN", ["line 2", "no arguments"]),
        ("FROM a\nCOPY a", ["line 2", "destination"]),
        ("FROM a\nCOPY --from=$x a b", ["line 2", "--from"]),
        ("FROM a\nCOPY --link --link a b", ["line 2", "twice"]),
        ("FROM a\nCOPY --link=perhaps a b", ["line 2", "true or false"]),
        ("FROM a\nCOPY --chown a b", ["line 2", "--chown=…"]),
        ("FROM a\nCMD [\"a\", 1]", ["line 2", "`1` in a list"]),
        ("FROM a\nSHELL bash", ["line 2", "JSON"]),
        ("FROM a\nHEALTHCHECK curl x", ["line 2", "NONE"]),
        ("FROM a\nHEALTHCHECK --interval=5 CMD x", ["line 2", "30s"]),
        ("FROM a\nHEALTHCHECK NONE x", ["line 2", "does not take"]),
        ("FROM a\nENV a", ["line 2", "no value"]),
        ("FROM a b", ["line 1", "AS"]),
        ("FROM a AS 1b", ["line 1", "stage"]),
        ("FROM a AS b\nFROM c AS B", ["line 2", "twice"]),
        ("FROM --plat=x a", ["line 1", "--plat"]),
    ] {
        let told = problem(file);
        assert!(parts.iter().all(|part| told.contains(part)), "{file:?}: {told}");
    }
}
