use super::*;

const PINNED: &str = "FROM a:1@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn ids(file: &str) -> Vec<&'static str> {
    let file = Dockerfile::parse(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    lint(&file, &Policy::default()).into_iter().map(|finding| finding.rule).collect()
}

/// What is found in some lines of an otherwise good file.
fn body(lines: &str) -> Vec<&'static str> {
    ids(&format!("{PINNED}\n{lines}\nUSER someone\n"))
}

fn hits(rule: &str, bodies: &[&str]) {
    for lines in bodies {
        assert!(body(lines).contains(&rule), "must be found as {rule}: {lines}\nfound: {:?}", body(lines));
    }
}

fn misses(bodies: &[&str]) {
    for lines in bodies {
        assert_eq!(body(lines), [""; 0], "must not be found: {lines}");
    }
}

#[test]
fn engine_sockets_are_found_in_any_spelling() {
    hits(
        "BJ001",
        &[
            "RUN curl --unix-socket /var/run/docker.sock http://x/",
            "RUN curl --unix-socket /run/docker.sock http://x/",
            "RUN curl --unix-socket '/var/run/docker.sock' http://x/",
            "RUN curl --unix-socket /var/run/dock\"er\".sock http://x/",
            "RUN curl --unix-socket /var//run/./docker.sock http://x/",
            "RUN curl --unix-socket /var/lib/../run/docker.sock http://x/",
            "RUN docker run \\\n  -v \\\n  # comment\n  /var/run/\\\ndocker.sock:/x y",
            "RUN docker -H unix:///var/run/docker.sock ps",
            "RUN docker run -v/var/run/docker.sock:/var/run/docker.sock:ro x",
            "RUN docker run --mount type=bind,src=/run/docker.sock,dst=/x y",
            "RUN s=docker.sock; ls /var/run/$s",
            "RUN cd /var/run && curl --unix-socket docker.sock http://x/",
            "RUN ls /var/run/docker.s*",
            "RUN ls /run/dock?r.sock",
            "ARG S=/var/run/docker.sock\nRUN ls ${S}",
            "ARG D=/var/run\nRUN ls ${D}/docker.sock",
            "ENV S=/run/podman/podman.sock",
            "ENV S /run/containerd/containerd.sock",
            "ENV DOCKER_HOST=unix:///tmp/x",
            "RUN DOCKER_HOST=unix:///tmp/x docker ps",
            "RUN export DOCKER_HOST='unix:///tmp/x'; docker ps",
            "VOLUME /var/run/docker.sock",
            "VOLUME [\"/var/run/docker.sock\"]",
            "ARG D=docker\nVOLUME /var/run/$D.sock",
            "COPY a /var/run/docker.sock",
            "RUN --mount=type=bind,target=/var/run/docker.sock ls",
            "RUN --mount=type=bind,source=run/docker.sock,target=/x ls",
            "RUN <<EOF\ncurl --unix-socket /var/run/docker.sock x\nEOF",
            "COPY <<EOF /x.sh\ncurl --unix-socket /run/docker.sock x\nEOF",
            "CMD [\"dockerd\", \"-H\", \"unix:///var/run/docker.sock\"]",
            "ENTRYPOINT curl --unix-socket /run/docker.sock x",
            "HEALTHCHECK CMD curl --unix-socket /run/docker.sock x",
            "RUN echo 'curl --unix-socket /run/docker.sock x' > /x.sh",
            "RUN x=$(curl --unix-socket /run/docker.sock x)",
        ],
    );
    misses(&[
        "# /var/run/docker.sock",
        "RUN a # /var/run/docker.sock",
        "RUN a \\\n# /var/run/docker.sock\n&& b",
        "RUN echo \"docker.sock\"",
        "RUN echo docker.sock is not there",
        "LABEL note=\"do not mount /var/run/docker.sock\"",
        "RUN rm -rf /var/run/*",
        "RUN ls /var/run/docker.socket",
        "RUN ls /var/run/docker.pid",
        "RUN ls /run/mydocker.sock",
        "ENV DOCKER_HOST=tcp://somewhere:2376",
        "VOLUME /var/run",
    ]);
}

#[test]
fn extra_rights_are_found() {
    hits(
        "BJ002",
        &[
            "RUN --security=insecure x",
            "RUN --security='insecure' x",
            "RUN docker run --privileged x",
            "RUN docker run --privileged=true x",
            "RUN docker run \\\n --priv\"ileged\" x",
            "RUN sudo /usr/bin/docker run -it --privileged x",
            "RUN a && podman run --cap-add=ALL x",
            "RUN docker run --cap-add SYS_ADMIN x",
            "RUN docker run --pid=host x",
            "RUN docker run --security-opt seccomp=unconfined x",
            "RUN [\"docker\", \"run\", \"--privileged\", \"x\"]",
            "RUN [\"sh\", \"-c\", \"docker run --privileged x\"]",
            "RUN docker buildx build --allow security.insecure .",
            "CMD docker run --privileged x",
            "RUN <<EOF\ndocker run --privileged x\nEOF",
        ],
    );
    misses(&[
        "RUN --security=sandbox x",
        "RUN echo --privileged",
        "RUN grep -r -- --privileged /etc",
        "RUN docker run --privileged=false x",
        "RUN docker run --cap-drop=ALL x",
        "RUN docker run --cap-add NET_BIND_SERVICE x",
    ]);
}

#[test]
fn the_machines_network_is_found() {
    hits(
        "BJ003",
        &[
            "RUN --network=host x",
            "RUN --network=\"host\" x",
            "RUN docker run --net=host x",
            "RUN docker run --network host x",
            "RUN docker build --network=host .",
        ],
    );
    misses(&[
        "RUN --network=none x",
        "RUN --network=default x",
        "RUN echo --network=host",
        "RUN docker run --network host-x y",
    ]);
}

#[test]
fn images_without_a_digest_are_found() {
    let digest = &PINNED[PINNED.find('@').unwrap()..];
    let user = "\nUSER someone\n";
    for file in [
        "FROM python:3.12",
        "FROM localhost:5000/python:3.12",
        "ARG V=3.12\nFROM python:$V",
        "ARG V\nFROM python:$V",
        "ARG I\nFROM $I",
        "FROM --platform=linux/amd64 python:3.12",
    ] {
        assert_eq!(ids(&format!("{file}{user}")), ["BJ004"], "{file}");
    }
    for file in [
        "FROM python",
        "FROM python:latest",
        "FROM localhost:5000/python",
        "ARG V=latest\nFROM python:${V}",
        "ARG I=python\nFROM $I",
        "FROM python:${V:-latest}",
    ] {
        assert_eq!(ids(&format!("{file}{user}")), ["BJ005"], "{file}");
    }
    for file in [
        "FROM scratch".to_owned(),
        format!("FROM python{digest}"),
        format!("FROM python:3.12{digest}"),
        format!("ARG D={}\nFROM python@$D", &digest[1..]),
        "FROM scratch AS Base\nFROM base\nCOPY --from=base a b\nCOPY --from=0 a b".to_owned(),
    ] {
        assert_eq!(ids(&format!("{file}{user}")), [""; 0], "{file}");
    }
    hits("BJ005", &["COPY --from=nginx a b", "RUN --mount=type=bind,from=nginx:latest,target=/x a"]);
    hits("BJ004", &["COPY --from=nginx:1 a b"]);
}

#[test]
fn additions_from_afar_are_found() {
    hits(
        "BJ006",
        &[
            "ADD https://x.example/a /b",
            "ADD HTTP://x.example/a /b",
            "ADD git@x.example:a/b.git /b",
            "ADD --keep-git-dir=true https://x.example/a.git#v1 /b",
            "ARG U=https://x.example\nADD $U/a /b",
            "ADD [\"https://x.example/a\", \"/b\"]",
            "ADD a https://x.example/b /c/",
        ],
    );
    misses(&["ADD a.tar.gz /b", "COPY https:/x /b", "ADD http/a /b", "ADD <<EOF /b\nhttps://x.example\nEOF"]);
}

#[test]
fn secrets_are_found_by_name_and_by_value() {
    hits(
        "BJ007",
        &[
            "ARG NPM_TOKEN",
            "ARG npmToken=x",
            "ENV DB_PASSWORD=x",
            "ENV DB_PASSWORD x",
            "ENV a=b AWS_SECRET_ACCESS_KEY=x",
            "ENV API_KEY=$x",
            "ENV GITHUB_TOKEN=\"x\"",
            "ENV \\\n  SECRET_KEY=x",
            "ARG apikey=x",
        ],
    );
    hits(
        "BJ008",
        &[
            "ENV X=ghp_0123456789abcdefghijABCDEFGHIJ012345",
            "ARG X=\"glpat-0123456789abcdefghij\"",
            "ENV X=AKIAABCDEFGHIJKLMNOP",
            "ENV X=sk-0123456789abcdefghijABCDEF",
            "ENV X=https://user:hunter2@x.example/y",
            "ENV X=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijkl",
            "ENV X=\"-----BEGIN RSA PRIVATE KEY-----\"",
            "ENV A=ghp_0123456789abcdefghij B=${A}ABCDEFGHIJ012345",
            "ARG A=ghp_0123456789abcdefghij\nENV B=${A}ABCDEFGHIJ012345",
        ],
    );
    misses(&[
        "ENV TOKENIZERS_PARALLELISM=false",
        "ENV MAX_TOKENS=5",
        "ENV PASSWORD_FILE=/run/secrets/x",
        "ENV SECRET_NAME=x",
        "ENV DB_PASSWORD=",
        "ENV KEYBOARD=de",
        "ENV PWD=/x",
        "ENV MONKEY=1",
        "ENV PYTHON_VERSION=3.12",
        "ENV X=https://user@x.example/y",
        "ENV X=https://x.example:8080/y",
        "ENV X=sk-short",
        "ENV X=task-0123456789abcdefghijABCDEF",
        "ENV X=AKIAlowercaseisnokey",
        "RUN --mount=type=secret,id=NPM_TOKEN x",
        "LABEL token=x",
    ]);
}

#[test]
fn downloads_that_are_run_are_found() {
    hits(
        "BJ009",
        &[
            "RUN curl https://x | sh",
            "RUN curl https://x|bash",
            "RUN curl -fsSL https://x | sudo -E bash -",
            "RUN curl https://x | sudo -u bob bash",
            "RUN wget -qO- https://x | sh -s -- --yes",
            "RUN curl https://x \\\n  # why\n  | \\\n  sh",
            "RUN a && curl https://x | bash -e",
            "RUN curl https://x | base64 -d | bash",
            "RUN curl https://x 2>/dev/null | sh 2>&1",
            "RUN curl https://x | /bin/sh",
            "RUN curl https://x | env A=b bash",
            "RUN curl https://x | python3",
            "RUN curl https://x | python3 -",
            "RUN curl https://x | perl",
            "RUN curl https://x |& sh",
            "RUN curl https://x | bash -o pipefail",
            "RUN curl https://x | bash /dev/stdin a",
            "RUN curl https://x | timeout 60 sh",
            "RUN curl https://x | busybox sh",
            "RUN curl https://x | tee >(sh)",
            "RUN (curl https://x) | sh",
            "RUN { curl https://x || wget -O- https://x; } | sh",
            "RUN curl https://x | (cd /x && sh)",
            "RUN bash <(curl https://x)",
            "RUN bash < <(curl https://x)",
            "RUN . <(curl https://x)",
            "RUN source <(wget -O- https://x)",
            "RUN sh -c \"$(curl -fsSL https://x)\"",
            "RUN sh -c \"`curl -fsSL https://x`\"",
            "RUN bash -lc \"curl https://x | sh\"",
            "RUN eval \"$(curl https://x)\"",
            "RUN eval `curl https://x`",
            "RUN bash <<< \"$(curl https://x)\"",
            "RUN python -c \"$(curl https://x)\"",
            "RUN $(curl https://x)",
            "RUN if true; then curl https://x | sh; fi",
            "RUN x=$(curl https://x | sh)",
            "RUN \"cu\"rl https://x | \"s\"h",
            "ARG U=https://x\nARG S=bash\nRUN curl $U | $S",
            "RUN <<EOF\nset -e\ncurl https://x | sh\nEOF",
            "RUN bash <<'EOF'\ncurl https://x |\n  sh\nEOF",
            "RUN [\"sh\", \"-c\", \"curl https://x | sh\"]",
            "RUN [\"bash\", \"-c\", \"bash <(curl https://x)\"]",
            "CMD curl https://x | sh",
            "ENTRYPOINT [\"/bin/sh\", \"-c\", \"wget -O- https://x | sh\"]",
            "RUN su - bob -c 'curl https://x | sh'",
            "RUN curl https://x | $SHELL",
        ],
    );
    misses(&[
        "RUN curl https://x -o y",
        "RUN curl https://x | tar xz",
        "RUN curl https://x | gpg --dearmor > y",
        "RUN curl https://x | jq .a",
        "RUN curl https://x | python3 -m json.tool",
        "RUN curl https://x | python3 -c 'import sys; print(sys.stdin.read())'",
        "RUN curl https://x | perl -pe 's/a/b/'",
        "RUN curl https://x -o y && sha256sum -c y.sum && sh y",
        "RUN curl https://x > y; sh y",
        "RUN curl https://x || sh fallback.sh",
        "RUN curl https://x && bash",
        "RUN echo 'curl https://x' '|' sh",
        "RUN echo \"curl https://x | sh\"",
        "RUN echo a | sh",
        "RUN cat x | sh",
        "RUN a # curl https://x | sh",
        "# RUN curl https://x | sh",
        "LABEL a=\"curl https://x | sh\"",
        "RUN V=$(curl https://x) && echo $V",
        "RUN sh install.sh --version=$(curl https://x)",
        "RUN apt-get install -y curl bash | sh x",
        "RUN bash -c 'curl https://x -o y'",
        "RUN curl https://x | bash script.sh",
        "RUN curl https://x | tee sh",
    ]);
}

#[test]
fn root_is_found_at_the_end_only() {
    for (file, expected) in [
        ("", &["BJ010"][..]),
        ("USER root", &["BJ010"]),
        ("USER 0", &["BJ010"]),
        ("USER 0:0", &["BJ010"]),
        ("USER root:staff", &["BJ010"]),
        ("USER someone\nUSER root", &["BJ010"]),
        ("ARG U=root\nUSER $U", &["BJ010"]),
        ("USER root\nRUN x\nUSER someone", &[]),
        ("USER 1000", &[]),
        ("USER someone:root", &[]),
        ("USER 0x", &[]),
    ] {
        assert_eq!(ids(&format!("{PINNED}\n{file}\n")), expected, "{file}");
    }
    assert_eq!(
        ids(&format!("{PINNED} AS base\nUSER someone\nFROM scratch\nUSER root\nFROM base\nRUN x")),
        [""; 0]
    );
    assert_eq!(ids(&format!("{PINNED} AS base\nUSER root\nFROM base\nRUN x")), ["BJ010"]);
}

#[test]
fn findings_have_lines_severities_and_remedies() {
    let file = Dockerfile::parse("FROM a\n\nRUN --network=host x \\\n --privileged\nUSER 0\n").unwrap();
    let told: Vec<_> =
        lint(&file, &Policy::default()).into_iter().map(|f| (f.line, f.rule, f.severity)).collect();
    let expected =
        [(1, "BJ005", Severity::Error), (3, "BJ003", Severity::Error), (5, "BJ010", Severity::Warning)];
    assert_eq!(told, expected);
    let mut policy = Policy::default();
    policy.0.remove(&Rule::Latest);
    policy.0.insert(Rule::RootUser, Severity::Error);
    let told: Vec<_> =
        lint(&file, &policy).into_iter().map(|finding| (finding.rule, finding.severity)).collect();
    assert_eq!(told, [("BJ003", Severity::Error), ("BJ010", Severity::Error)]);
    assert!(
        Rule::ALL.iter().all(|rule| Rule::from_id(rule.id()) == Some(*rule) && !rule.remedy().is_empty())
    );
}
