//! Repositories from end to end: real git, real servers on loopback, hostile repositories.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belljar::fault::{Code, Fault};
use belljar::repo::{
    Checkout, EntryKind, GitEnvironment, GitLimits, GitLogs, RepoError, Repositories, ResolvedCommit, Source,
    SourceKind, tree_digest, tree_entries,
};
use tempfile::TempDir;

const TOY_COMMIT: &str = "6a03c5b785aaef1164d5ca7a32e2dd90d2db0e02";
const SECRET: &str = "s3cr3t-Pa55";

struct Place {
    root: TempDir,
    environment: GitEnvironment,
    limits: GitLimits,
}

impl Place {
    fn new() -> Place {
        let root = TempDir::new().unwrap();
        fs::create_dir(root.path().join("home")).unwrap();
        fs::create_dir(root.path().join("logs")).unwrap();
        let mut environment = GitEnvironment::from_variables(std::env::vars_os());
        environment.home = Some(root.path().join("home"));
        Place { root, environment, limits: GitLimits::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn repositories(&self) -> Repositories {
        Repositories::open_with_limits(&self.path("cache"), self.environment.clone(), self.limits).unwrap()
    }

    fn logs(&self, step: &str) -> GitLogs {
        GitLogs::in_folder(&self.path("logs"), step)
    }

    fn source(&self, url: &str) -> Source {
        Source::parse(url, self.root.path()).unwrap()
    }

    fn resolve(&self, url: &str, commit: &str) -> Result<ResolvedCommit, RepoError> {
        self.repositories().resolve(&self.source(url), Some(commit))
    }

    fn check_out(&self, url: &str, commit: Option<&str>, into: &str) -> Result<Checkout, RepoError> {
        let (repositories, source, into) = (self.repositories(), self.source(url), self.path(into));
        let resolved = repositories.resolve(&source, commit)?;
        repositories.clone_history(&source, &resolved, &into, &self.logs("git_clone"))?;
        repositories.checkout(&source, &resolved, &into, &self.logs("git_checkout"))
    }

    fn git(&self, folder: &str, arguments: &[&str]) -> String {
        self.git_input(folder, arguments, b"")
    }

    fn git_input(&self, folder: &str, arguments: &[&str], input: &[u8]) -> String {
        let mut child = Command::new("git")
            .args(["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"])
            .args(["-c", "safe.directory=*", "-c", "commit.gpgsign=false"])
            .args(arguments)
            .current_dir(self.path(folder))
            .env("HOME", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_COMMITTER_DATE", "1700000000 +0000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("these tests need the git program");
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn script(&self, name: &str, content: &str) -> PathBuf {
        let path = self.write(name, &format!("#!/bin/sh\n{content}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A repository `name` with a first commit, a tag on it, and a later commit; gives both.
    fn history(&self, name: &str) -> (String, String) {
        fs::create_dir_all(self.path(name)).unwrap();
        self.git(name, &["init", "-q"]);
        self.write(&format!("{name}/code.txt"), "first\n");
        self.script(&format!("{name}/bin/run"), "true");
        symlink("code.txt", self.path(name).join("link")).unwrap();
        self.git(name, &["add", "-A"]);
        self.git(name, &["commit", "-qm", "first"]);
        self.git(name, &["tag", "-a", "v1", "-m", "annotated"]);
        let first = self.git(name, &["rev-parse", "HEAD"]);
        self.write(&format!("{name}/code.txt"), "the solution\n");
        self.git(name, &["commit", "-qam", "second"]);
        (first, self.git(name, &["rev-parse", "HEAD"]))
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The loose object of a commit's `code.txt`, found without the repository's own configuration.
    fn loose_code(&self, name: &str, sha: &str) -> PathBuf {
        let objects = self.path(name).join(".git/objects");
        fs::create_dir(self.path("lender")).unwrap();
        self.git("lender", &["init", "-q"]);
        self.write("lender/.git/objects/info/alternates", &format!("{}\n", objects.display()));
        let blob = self.git("lender", &["rev-parse", &format!("{sha}:code.txt")]);
        objects.join(&blob[..2]).join(&blob[2..])
    }

    fn raw_tree(&self, folder: &str, entries: &[(&str, &str, &str)]) -> String {
        let mut bytes = Vec::new();
        for (mode, name, sha) in entries {
            bytes.extend_from_slice(format!("{mode} {name}\0").as_bytes());
            bytes.extend((0..20).map(|at| u8::from_str_radix(&sha[at * 2..at * 2 + 2], 16).unwrap()));
        }
        self.git_input(folder, &["hash-object", "-t", "tree", "--literally", "-w", "--stdin"], &bytes)
    }

    fn blob(&self, folder: &str, content: &str) -> String {
        self.git_input(folder, &["hash-object", "-w", "--stdin"], content.as_bytes())
    }
}

fn code(error: RepoError) -> Code {
    Fault::from(error).code
}

fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

fn assert_nowhere(root: &Path, secret: &str) {
    for path in files_below(root).into_iter().filter(|path| path.is_file()) {
        let bytes = fs::read(&path).unwrap();
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the secret is in {}", path.display());
    }
}

struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Serves git over http: `smart` through git http-backend, `dumb` as plain files, both with an optional login.
const HTTP: &str = r#"
import base64, http.server, os, subprocess, sys
root, style, login = sys.argv[1:4]
class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *rest):
        super().__init__(*rest, directory=root)
    def log_message(self, *rest):
        pass
    def allowed(self):
        wanted = "Basic " + base64.b64encode(login.encode()).decode()
        if not login or self.headers.get("Authorization") == wanted:
            return True
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False
    def do_GET(self):
        if self.allowed():
            super().do_GET() if style == "dumb" else self.backend(b"")
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.allowed():
            self.backend(body)
    def backend(self, body):
        path, _, query = self.path.partition("?")
        env = dict(os.environ, GIT_PROJECT_ROOT=root, GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path, QUERY_STRING=query,
            REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get("Content-Type", ""), REMOTE_ADDR="127.0.0.1",
            CONTENT_LENGTH=str(len(body)), GIT_PROTOCOL=self.headers.get("Git-Protocol", ""),
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""),
            GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
        out = subprocess.run(["git", "http-backend"], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, rest = out.partition(b"\r\n\r\n")
        status, headers = 200, []
        for line in head.decode().splitlines():
            key, _, value = line.partition(": ")
            if key == "Status":
                status = int(value.split()[0])
            else:
                headers.append((key, value))
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

fn http_server(place: &Place, style: &str, login: &str) -> Server {
    let mut child = Command::new("python3")
        .args(["-c", HTTP])
        .arg(place.root.path())
        .args([style, login])
        .stdout(Stdio::piped())
        .spawn()
        .expect("these tests need python3");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Server { child, port: line.trim().parse().expect("the http server says its port") }
}

fn git_daemon(place: &Place) -> Server {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // Not `git daemon`: that is a wrapper, and killing it would leave the daemon.
    let program = Command::new("git").arg("--exec-path").output().unwrap().stdout;
    let program = PathBuf::from(String::from_utf8(program).unwrap().trim()).join("git-daemon");
    let child = Command::new(program)
        .args(["--export-all", "--listen=127.0.0.1", "--log-destination=none"])
        .arg(format!("--port={port}"))
        .arg(format!("--base-path={}", place.root.path().display()))
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .stderr(Stdio::null())
        .spawn()
        .expect("these tests need git daemon");
    let server = Server { child, port };
    for _ in 0..500 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return server;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("git daemon did not start");
}

#[test]
fn each_local_form_gives_the_pinned_files() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    place.git("origin", &["clone", "-q", "--bare", "--no-local", ".", "../bare.git"]);
    place.git("origin", &["bundle", "create", "-q", "../all.bundle", "--all"]);
    place.git("origin", &["worktree", "add", "-q", "../tree", "main~1"]);
    let root = place.root.path().display().to_string();
    let forms = [
        "origin".to_owned(),
        "./origin/".to_owned(),
        format!("{root}/origin"),
        format!("file://{root}/origin"),
        format!("file://localhost{root}/origin"),
        "bare.git".to_owned(),
        "all.bundle".to_owned(),
        "tree".to_owned(),
    ];
    for (number, form) in forms.iter().enumerate() {
        let into = format!("work{number}/repo");
        let checkout = place.check_out(form, Some(&first), &into).unwrap();
        assert_eq!(checkout.sha, first);
        assert_eq!(place.read(&format!("{into}/code.txt")), "first\n", "{form}");
        assert_eq!(place.git(&into, &["rev-parse", "HEAD"]), first);
        assert_eq!(place.git(&into, &["status", "--porcelain"]), "");
        assert_eq!(checkout.files, 3);
    }
}

#[test]
fn each_network_form_gives_the_pinned_files() {
    let mut place = Place::new();
    let (first, second) = place.history("origin");
    place.git("origin", &["update-server-info"]);
    let (smart, dumb) = (http_server(&place, "smart", ""), http_server(&place, "dumb", ""));
    let daemon = git_daemon(&place);
    // Stands for ssh: the last argument is the command for the other side.
    let ssh = place.script("fake-ssh", r#"for last; do :; done; exec sh -c "$last""#);
    place.environment.variables.push(("GIT_SSH_COMMAND".into(), ssh.into_os_string()));
    place.environment.variables.push(("GIT_SSH_VARIANT".into(), "simple".into()));
    let root = place.root.path().display().to_string();
    let forms = [
        format!("http://127.0.0.1:{}/origin/.git", smart.port),
        format!("http://127.0.0.1:{}/origin/.git/", dumb.port),
        format!("git://127.0.0.1:{}/origin", daemon.port),
        format!("ssh://git@example.org{root}/origin"),
        format!("git@example.org:{root}/origin"),
    ];
    for (number, form) in forms.iter().enumerate() {
        for (step, commit) in [&first, "v1", "main"].into_iter().enumerate() {
            let into = format!("work{number}{step}");
            let checkout = place.check_out(form, Some(commit), &into).expect(form);
            let expected = if commit == "main" { &second } else { &first };
            assert_eq!(checkout.sha, *expected, "{form} {commit}");
            assert_eq!(place.git(&into, &["status", "--porcelain"]), "");
        }
    }
}

#[test]
fn a_full_sha_in_the_cache_needs_no_network() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    let url = {
        let daemon = git_daemon(&place);
        let url = format!("git://127.0.0.1:{}/origin", daemon.port);
        place.check_out(&url, Some(&first), "one").unwrap();
        url
    };
    place.check_out(&url, Some(&first), "two").unwrap();
    assert_eq!(code(place.resolve(&url, "main").unwrap_err()), Code::RepoUnreachable);
    place.check_out(&url, Some(&first), "three").unwrap();
}

#[test]
fn addresses_that_are_not_understood_are_refused() {
    let place = Place::new();
    place.write("file.txt", "not a bundle");
    let cases = [
        ("ext::sh -c touch% /tmp/x", Code::RepoRefused, "allowed transport"),
        ("fd::7", Code::RepoRefused, "allowed transport"),
        ("ftp://example.org/x", Code::RepoRefused, "allowed transport"),
        ("git+ssh://example.org/x", Code::RepoRefused, "allowed transport"),
        ("--upload-pack=touch x", Code::RepoSource, "dash"),
        ("-oProxyCommand=x", Code::RepoSource, "dash"),
        ("ssh://-oProxyCommand=x/y", Code::RepoSource, "dash"),
        ("ssh://-x@host/y", Code::RepoSource, "dash"),
        ("-x@host:y", Code::RepoSource, "dash"),
        ("git@-host:y", Code::RepoSource, "dash"),
        ("git@host:-y", Code::RepoSource, "path"),
        ("https://host", Code::RepoSource, "no path"),
        ("https:///x", Code::RepoSource, "no host"),
        ("https://ho st/x", Code::RepoSource, "host"),
        ("file://elsewhere/x", Code::RepoSource, "absolute path"),
        ("a\nb", Code::RepoSource, "control"),
        ("a\0b", Code::RepoSource, "NUL"),
        ("", Code::RepoSource, "empty"),
        ("~/x", Code::RepoSource, "shell"),
        ("missing", Code::RepoSource, "cannot be read"),
        ("file.txt", Code::RepoSource, "not a git bundle"),
    ];
    for (url, expected, words) in cases {
        let fault = Fault::from(Source::parse(url, place.root.path()).expect_err(url));
        assert_eq!(fault.code, expected, "{url:?}");
        assert!(fault.message.contains(words), "{url:?}: {}", fault.message);
        assert!(!fault.message.contains('\n') && !fault.hints.is_empty());
    }
}

#[test]
fn names_resolve_to_commits() {
    let place = Place::new();
    let (first, second) = place.history("origin");
    place.git("origin", &["branch", "topic/x", "v1"]);
    for pass in ["loose", "packed"] {
        for (name, expected) in [
            (first.as_str(), &first),
            (&first[..9], &first),
            ("v1", &first),
            ("refs/tags/v1", &first),
            ("topic/x", &first),
            ("main", &second),
            ("refs/heads/main", &second),
        ] {
            assert_eq!(place.resolve("origin", name).expect(name).sha, *expected, "{name} {pass}");
        }
        place.git("origin", &["pack-refs", "--all"]);
    }
    let resolved = place.resolve("origin", &first).unwrap();
    assert_eq!(resolved.commit_time, 1_700_000_000);
    assert_eq!(resolved.kind, SourceKind::Repository);
    assert_eq!(resolved.tree, place.git("origin", &["rev-parse", "v1^{tree}"]));
    assert_eq!(place.resolve("origin", &first.to_uppercase()).unwrap().sha, first);
}

#[test]
fn pins_that_are_missing_unknown_or_ambiguous_say_so() {
    let place = Place::new();
    let (first, second) = place.history("origin");
    let missing = place.repositories().resolve(&place.source("origin"), None).unwrap_err();
    let fault = Fault::from(missing);
    assert_eq!(fault.code, Code::RepoCommitMissing);
    assert!(fault.hints[0].contains(&second), "{:?}", fault.hints);
    let unknown = "0123456789012345678901234567890123456789";
    for name in [unknown, "no-such-branch", "abcdef0"] {
        assert_eq!(code(place.resolve("origin", name).unwrap_err()), Code::RepoCommitUnknown, "{name}");
    }
    let tree = place.git("origin", &["rev-parse", "HEAD^{tree}"]);
    assert_eq!(code(place.resolve("origin", &tree).unwrap_err()), Code::RepoCommitUnknown);
    place.git("origin", &["branch", "v1"]);
    assert_eq!(code(place.resolve("origin", "v1").unwrap_err()), Code::RepoRefused);
    place.git("origin", &["branch", &first[..8]]);
    assert_eq!(code(place.resolve("origin", &first[..8]).unwrap_err()), Code::RepoRefused);
    for name in
        ["HEAD", "-x", "main~1", "main..v1", "v1^{tree}", "@{u}", ":/first", "", "a b", "x.lock", "a//b"]
    {
        assert_eq!(code(place.resolve("origin", name).unwrap_err()), Code::RepoRefused, "{name}");
    }
}

#[test]
fn ambiguous_abbreviations_are_refused() {
    let place = Place::new();
    fs::create_dir(place.path("origin")).unwrap();
    place.git("origin", &["init", "-q"]);
    let tree = place.git("origin", &["mktree"]);
    let mut seen = BTreeSet::new();
    for number in 0.. {
        let text = format!("tree {tree}\nauthor a <a> {number} +0000\ncommitter a <a> {number} +0000\n\nx\n");
        let sha =
            place.git_input("origin", &["hash-object", "-t", "commit", "-w", "--stdin"], text.as_bytes());
        if !seen.insert(sha[..4].to_owned()) {
            assert_eq!(code(place.resolve("origin", &sha[..4]).unwrap_err()), Code::RepoRefused);
            return;
        }
    }
}

#[test]
fn sha256_repositories_work() {
    let place = Place::new();
    fs::create_dir(place.path("origin")).unwrap();
    place.git("origin", &["init", "-q", "--object-format=sha256"]);
    place.write("origin/code.txt", "x\n");
    place.git("origin", &["add", "-A"]);
    place.git("origin", &["commit", "-qm", "first"]);
    place.git("origin", &["bundle", "create", "-q", "../all.bundle", "--all"]);
    let sha = place.git("origin", &["rev-parse", "HEAD"]);
    let daemon = git_daemon(&place);
    let url = format!("git://127.0.0.1:{}/origin", daemon.port);
    let cases = [("origin", sha.as_str()), ("all.bundle", "main"), (&url, &sha), (&url, "main")];
    for (number, (url, commit)) in cases.into_iter().enumerate() {
        let into = format!("work{number}");
        assert_eq!(place.check_out(url, Some(commit), &into).unwrap().sha, sha);
        assert_eq!(place.git(&into, &["status", "--porcelain"]), "");
    }
}

#[test]
fn a_shallow_source_gives_a_shallow_checkout() {
    let place = Place::new();
    let (_, second) = place.history("origin");
    let url = format!("file://{}", place.path("origin").display());
    place.git("home", &["clone", "-q", "--depth=1", &url, "../shallow"]);
    place.check_out("shallow", Some(&second), "work").unwrap();
    assert_eq!(place.git("work", &["log", "--format=%H"]), second);
    place.git("work", &["fsck", "--full"]);
}

#[test]
fn nothing_later_than_the_commit_is_in_a_checkout() {
    let place = Place::new();
    let (first, second) = place.history("origin");
    place.git("origin", &["commit", "-q", "--amend", "-m", "amended, the other is unreachable now"]);
    place.git("origin", &["bundle", "create", "-q", "../all.bundle", "--all"]);
    let daemon = git_daemon(&place);
    let url = format!("git://127.0.0.1:{}/origin", daemon.port);
    // The mirror has seen everything before the checkout is made.
    place.resolve(&url, "main").unwrap();
    let solution = place.git("origin", &["rev-parse", "main:code.txt"]);
    let history = place.git("origin", &["rev-list", "--objects", "--no-object-names", &first]);
    for (number, url) in ["origin", "all.bundle", &url].into_iter().enumerate() {
        let into = format!("work{number}");
        place.check_out(url, Some(&first), &into).unwrap();
        let all = place.git(&into, &["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]);
        assert!(!all.contains(&solution) && !all.contains(&second));
        let sorted = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        assert_eq!(sorted(&all), sorted(&history));
        assert_eq!(place.git(&into, &["for-each-ref"]), "");
        assert_eq!(place.git(&into, &["remote"]), "");
        for name in ["FETCH_HEAD", "ORIG_HEAD", "logs", "hooks", "packed-refs", "objects/info/alternates"] {
            assert!(!place.path(&into).join(".git").join(name).exists(), "{name}");
        }
        assert_eq!(place.read(&format!("{into}/.git/HEAD")).trim(), first);
        let configuration = place.read(&format!("{into}/.git/config"));
        assert!(configuration.lines().count() <= 6, "{configuration}");
        place.git(&into, &["fsck", "--full", "--strict"]);
    }
}

#[test]
fn times_and_modes_do_not_depend_on_the_host() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    // In a process of its own: the umask belongs to the whole process.
    let mut command = child(&place, "checkout", "origin", &first, "work");
    assert!(command.env("BELLJAR_CHILD_UMASK", "077").status().unwrap().success());
    for (name, mode) in [("code.txt", 0o644), ("bin/run", 0o755), ("bin", 0o755)] {
        let metadata = fs::symlink_metadata(place.path("work").join(name)).unwrap();
        assert_eq!(metadata.mode() & 0o7777, mode, "{name}");
        assert_eq!(metadata.mtime(), 1_700_000_000, "{name}");
    }
    assert_eq!(fs::symlink_metadata(place.path("work/link")).unwrap().mtime(), 1_700_000_000);
    assert_eq!(fs::read_link(place.path("work/link")).unwrap(), Path::new("code.txt"));
    // The index knows these times: nothing is left to refresh.
    assert_eq!(place.git("work", &["diff-files", "--name-only"]), "");
}

#[test]
fn a_full_folder_is_not_cloned_into_and_the_logs_say_why() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    place.write("work/mine.txt", "keep");
    let error = place.check_out("origin", Some(&first), "work").unwrap_err();
    assert_eq!(code(error), Code::RepoFailed);
    assert!(place.read("logs/git_clone_stderr.txt").contains("clone into"));
    assert_eq!(place.read("work/mine.txt"), "keep");
}

#[test]
fn submodules_are_refused() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    place.git("origin", &["update-index", "--add", "--cacheinfo", &format!("160000,{first},vendor/lib")]);
    place.git("origin", &["commit", "-qm", "submodule"]);
    let sha = place.git("origin", &["rev-parse", "HEAD"]);
    let error = place.resolve("origin", &sha).unwrap_err();
    assert!(error.to_string().contains("submodule at \"vendor/lib\""), "{error}");
    assert_eq!(code(error), Code::RepoRefused);
    place.resolve("origin", &first).unwrap();
}

#[test]
fn files_in_lfs_are_refused() {
    let place = Place::new();
    place.history("origin");
    place.write("origin/.gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    place.git("origin", &["add", "-A"]);
    place.git("origin", &["commit", "-qm", "attributes only"]);
    place.resolve("origin", "main").unwrap();
    let pointer =
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12345\n", "0".repeat(64));
    place.write("origin/data/model.bin", &pointer);
    place.git("origin", &["add", "-A"]);
    place.git("origin", &["commit", "-qm", "pointer"]);
    let error = place.resolve("origin", "main").unwrap_err();
    assert!(error.to_string().contains("data/model.bin"), "{error}");
    assert_eq!(code(error), Code::RepoRefused);
}

const HOOKS: [&str; 18] = [
    "post-checkout",
    "post-index-change",
    "reference-transaction",
    "pre-commit",
    "post-commit",
    "post-merge",
    "pre-auto-gc",
    "post-rewrite",
    "update",
    "pre-receive",
    "post-receive",
    "fsmonitor-watchman",
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "proc-receive",
    "commit-msg",
    "prepare-commit-msg",
];

/// Puts everything into a repository that could start a program; each would make the marker.
fn make_hostile(place: &Place, name: &str) -> PathBuf {
    let marker = place.path("marker");
    let touch = format!("touch {}", marker.display());
    for hook in HOOKS {
        place.script(&format!("{name}/.git/hooks/{hook}"), &touch);
    }
    let included = place.write("included", &format!("[core]\n\tfsmonitor = {touch}\n\tpager = {touch}\n"));
    let hooks = place.path(name).join(".git/hooks");
    let configuration = format!(
        "[core]\n\thooksPath = {hooks}\n\tfsmonitor = {touch}\n\tsshCommand = {touch}\n\tpager = {touch}\n\
         \teditor = {touch}\n\taskPass = {touch}\n\tgitProxy = {touch}\n\talternateRefsCommand = {touch}\n\
         [filter \"evil\"]\n\tsmudge = {touch}\n\tclean = {touch}\n\tprocess = {touch}\n\trequired = true\n\
         [diff \"evil\"]\n\ttextconv = {touch}\n\tcommand = {touch}\n[diff]\n\texternal = {touch}\n\
         [merge \"evil\"]\n\tdriver = {touch}\n[uploadpack]\n\tpackObjectsHook = {touch}\n\
         [alias]\n\tcat-file = !{touch}\n\tread-tree = !{touch}\n\tfetch = !{touch}\n[gpg]\n\tprogram = {touch}\n\
         [credential]\n\thelper = !{touch}\n[include]\n\tpath = {included}\n\
         [includeIf \"gitdir:/**\"]\n\tpath = {included}\n[extensions]\n\tpartialClone = origin\n\
         [remote \"origin\"]\n\turl = ext::sh -c touch% {marker}\n\tpromisor = true\n\tuploadpack = {touch}\n\
         [protocol \"ext\"]\n\tallow = always\n[gc]\n\tauto = 1\n\trecentObjectsHook = {touch}\n",
        hooks = hooks.display(),
        included = included.display(),
        marker = marker.display(),
    );
    let path = place.path(name).join(".git/config");
    let before = fs::read_to_string(&path).unwrap();
    let before = before.replace("repositoryformatversion = 0", "repositoryformatversion = 1");
    fs::write(&path, before + &configuration).unwrap();
    marker
}

#[test]
fn nothing_a_repository_configures_runs_on_the_host() {
    let place = Place::new();
    place.history("origin");
    place.write("origin/.gitattributes", "* filter=evil diff=evil merge=evil ident\n");
    place.git("origin", &["add", "-A"]);
    place.git("origin", &["commit", "-qm", "attributes"]);
    let sha = place.git("origin", &["rev-parse", "HEAD"]);
    place.git("origin", &["bundle", "create", "-q", "../all.bundle", "--all"]);
    let marker = make_hostile(&place, "origin");
    let patch =
        place.write("fix.diff", "--- a/code.txt\n+++ b/code.txt\n@@ -1 +1 @@\n-the solution\n+patched\n");
    for (number, url) in ["origin", "all.bundle"].into_iter().enumerate() {
        let into = format!("work{number}");
        for name in ["main", "v1", &sha] {
            place.resolve(url, name).unwrap();
        }
        place.check_out(url, Some(&sha), &into).unwrap();
        assert_eq!(place.read(&format!("{into}/code.txt")), "the solution\n");
        // The guest had the folder for a while.
        make_hostile(&place, &into);
        place.repositories().apply_patch(&place.path(&into), &patch, &place.logs("patch")).unwrap();
        assert_eq!(place.read(&format!("{into}/code.txt")), "patched\n");
        assert!(!marker.exists(), "something ran for {url}");
    }
    // With a file missing that the configuration says can be fetched: git must not go for it.
    fs::remove_file(place.loose_code("origin", &sha)).unwrap();
    fs::remove_dir_all(place.path("cache")).unwrap();
    assert_eq!(code(place.check_out("origin", Some(&sha), "lazy").unwrap_err()), Code::RepoFailed);
    assert!(!marker.exists(), "a lazy fetch ran");
}

#[test]
fn the_hostile_repository_of_these_tests_is_really_hostile() {
    let place = Place::new();
    place.history("origin");
    place.write("origin/.gitattributes", "* filter=evil\n");
    place.git("origin", &["add", "-A"]);
    place.git("origin", &["commit", "-qm", "attributes"]);
    let marker = make_hostile(&place, "origin");
    Command::new("git").args(["status"]).current_dir(place.path("origin")).output().unwrap();
    assert!(marker.exists(), "plain git runs what the repository configures");
}

#[test]
fn a_hostile_tree_cannot_write_outside() {
    let place = Place::new();
    fs::create_dir_all(place.path("origin")).unwrap();
    fs::create_dir_all(place.path("outside")).unwrap();
    place.git("origin", &["init", "-q"]);
    let evil = place.blob("origin", "evil\n");
    let outside = place.blob("origin", &place.path("outside").display().to_string());
    let dot_git = place.blob("origin", ".git");
    let tree = |entries: &[(&str, &str, &str)]| place.raw_tree("origin", entries);
    let hooks = tree(&[("40000", "hooks", &tree(&[("100755", "post-checkout", &evil)]))]);
    let inner = tree(&[("100644", "passwd", &evil)]);
    let absolute = format!("{}/absolute", place.path("outside").display());
    let trees = [
        tree(&[("40000", ".GIT", &hooks)]),
        tree(&[("40000", ".git", &hooks)]),
        tree(&[("40000", "git~1", &hooks)]),
        tree(&[("40000", ".g\u{200c}it", &hooks)]),
        tree(&[("40000", "..", &tree(&[("100644", "escaped", &evil)]))]),
        tree(&[("100644", "../escaped", &evil)]),
        tree(&[("100644", &absolute, &evil)]),
        tree(&[("120000", "a", &outside), ("40000", "a", &inner)]),
        tree(&[("40000", "a", &inner), ("120000", "a", &outside)]),
        tree(&[("120000", "a", &outside), ("100644", "a/passwd", &evil)]),
        tree(&[("120000", "A", &dot_git), ("40000", "A", &hooks)]),
        tree(&[("120000", ".git", &outside)]),
    ];
    for (number, tree) in trees.iter().enumerate() {
        let sha = place.git("origin", &["commit-tree", tree, "-m", "x"]);
        let into = format!("deep/work{number}");
        let result = place.check_out("origin", Some(&sha), &into);
        assert!(fs::read_dir(place.path("outside")).unwrap().next().is_none(), "tree {number} wrote outside");
        assert!(!place.path("deep/escaped").exists() && !place.path("escaped").exists(), "tree {number}");
        assert!(!place.path(&into).join(".git/hooks").exists(), "tree {number} made a hook");
        assert!(place.path(&into).join(".git").is_dir() || result.is_err());
        if number < 7 {
            assert_eq!(code(result.expect_err("a tree with such a name")), Code::RepoFailed, "tree {number}");
        }
    }
}

#[test]
fn a_link_out_of_the_tree_is_kept_and_not_followed() {
    let place = Place::new();
    fs::create_dir_all(place.path("origin")).unwrap();
    fs::create_dir_all(place.path("outside")).unwrap();
    place.git("origin", &["init", "-q"]);
    symlink(place.path("outside"), place.path("origin/out")).unwrap();
    place.git("origin", &["add", "-A"]);
    place.git("origin", &["commit", "-qm", "link"]);
    let before = fs::metadata(place.path("outside")).unwrap();
    place.check_out("origin", Some("main"), "work").unwrap();
    let after = fs::metadata(place.path("outside")).unwrap();
    assert_eq!((before.mtime(), before.mode()), (after.mtime(), after.mode()));
    assert_eq!(fs::read_link(place.path("work/out")).unwrap(), place.path("outside"));
    assert_eq!(tree_digest(&place.path("work")).unwrap().files, 0);
}

#[test]
fn borrowed_objects_are_refused() {
    let place = Place::new();
    let (first, _) = place.history("private");
    fs::create_dir(place.path("bait")).unwrap();
    place.git("bait", &["init", "-q"]);
    let objects = place.path("private/.git/objects");
    place.write("bait/.git/objects/info/alternates", &format!("{}\n", objects.display()));
    let parse = |name: &str| Source::parse(name, place.root.path());
    assert_eq!(code(parse("bait").unwrap_err()), Code::RepoRefused);
    fs::remove_dir_all(place.path("bait/.git/objects")).unwrap();
    symlink(&objects, place.path("bait/.git/objects")).unwrap();
    assert_eq!(code(parse("bait").unwrap_err()), Code::RepoRefused);
    fs::remove_dir_all(place.path("bait/.git")).unwrap();
    place.write("bait/.git", &format!("gitdir: {}\n", place.path("private/.git").display()));
    assert_eq!(code(parse("bait").unwrap_err()), Code::RepoRefused);
    assert!(place.resolve("private", &first).is_ok());
}

#[test]
fn a_private_repository_is_reached_and_its_secret_stays_outside() {
    let mut place = Place::new();
    let (first, _) = place.history("origin");
    let server = http_server(&place, "smart", &format!("alice:{SECRET}"));
    let arguments = place.path("arguments");
    let spy = format!("printf '%s\\n' \"$@\" >>{}; exec git \"$@\"", arguments.display());
    place.environment.program = place.script("spy", &spy);
    let plain = format!("http://127.0.0.1:{}/origin/.git", server.port);
    let with_login = plain.replace("127", &format!("alice:{SECRET}@127"));
    assert_eq!(code(place.resolve(&plain, &first).unwrap_err()), Code::RepoUnreachable);
    place.check_out(&with_login, Some(&first), "work1").unwrap();

    let ask = place.script("ask", "case \"$1\" in Username*) echo alice;; *) cat \"$HOME/word\";; esac");
    place.environment.variables.push(("GIT_ASKPASS".into(), ask.into_os_string()));
    place.write("home/word", SECRET);
    fs::remove_dir_all(place.path("cache")).unwrap();
    place.check_out(&plain, Some(&first), "work2").unwrap();

    place.environment.variables.clear();
    let helper =
        "[credential]\n\tusername = alice\n\thelper = \"!f() { echo password=$(cat $HOME/word); }; f\"\n";
    place.write("home/.gitconfig", helper);
    fs::remove_dir_all(place.path("cache")).unwrap();
    place.check_out(&plain, Some(&first), "work3").unwrap();
    for folder in ["work1", "work2", "work3", "cache", "logs"] {
        assert_nowhere(&place.path(folder), SECRET);
        assert_nowhere(&place.path(folder), "alice");
    }
    let spied = place.read("arguments");
    assert!(spied.contains("fetch") && !spied.contains(SECRET) && !spied.contains("alice"));
}

#[test]
fn messages_and_logs_are_redacted() {
    let place = Place::new();
    place.history("origin");
    let server = http_server(&place, "smart", "alice:another");
    let url = format!("http://alice:{SECRET}@127.0.0.1:{}/origin/.git?token={SECRET}", server.port);
    let source = place.source(&url);
    let error = place.repositories().resolve(&source, Some("main")).unwrap_err();
    let debug = format!("{source} {source:?} {error} {error:?}");
    assert!(!debug.contains(SECRET) && !debug.contains("alice"), "{debug}");
    let fault = Fault::from(error);
    assert_eq!(fault.code, Code::RepoUnreachable);
    assert!(fault.message.contains("http://***@127.0.0.1"), "{}", fault.message);
    let refused = [
        format!("ftp://alice:{SECRET}@h/x"),
        format!("https://alice:{SECRET}@h"),
        format!("ssh://u:{SECRET}@h/x"),
    ];
    for bad in refused {
        let error = Source::parse(&bad, place.root.path()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
    }
}

#[test]
fn many_processes_share_one_cold_mirror() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    let daemon = git_daemon(&place);
    let url = format!("git://127.0.0.1:{}/origin", daemon.port);
    let start =
        |number: u32| child(&place, "checkout", &url, &first, &format!("work{number}")).spawn().unwrap();
    let children: Vec<Child> = (0..8).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    std::thread::scope(|scope| {
        for number in 8..16 {
            let (place, first) = (&place, &first);
            scope.spawn(move || place.check_out("origin", Some(first), &format!("work{number}")).unwrap());
        }
    });
    let digest = |number: u32| tree_digest(&place.path(&format!("work{number}"))).unwrap().digest;
    assert_eq!((0..16).map(digest).collect::<BTreeSet<_>>().len(), 1);
}

fn mirror_of(place: &Place) -> PathBuf {
    let is_mirror = |path: &PathBuf| path.extension().is_some_and(|end| end == "git");
    let entries = fs::read_dir(place.path("cache/git")).unwrap().flatten();
    entries.map(|entry| entry.path()).find(is_mirror).expect("a mirror")
}

/// Passes on no more than `limit` bytes of the answer, then shoots the git that waits for the rest.
fn relay(inside: std::net::TcpStream, outside: std::net::TcpStream, limit: u64, pid: &Path) {
    let (mut up, mut to) = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
    std::thread::spawn(move || {
        std::io::copy(&mut up, &mut to).ok();
        to.shutdown(std::net::Shutdown::Write).ok();
    });
    let (mut down, mut back) = (outside.take(limit), inside);
    std::io::copy(&mut down, &mut back).ok();
    if down.limit() == 0 {
        let number = fs::read_to_string(pid).unwrap();
        assert!(Command::new("kill").args(["-9", number.trim()]).status().unwrap().success());
    }
    back.shutdown(std::net::Shutdown::Both).ok();
}

#[test]
fn a_fetch_that_was_killed_does_not_spoil_the_next() {
    let mut place = Place::new();
    let (first, _) = place.history("origin");
    let mut noise = vec![0; 200_000];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    fs::write(place.path("origin/noise"), noise).unwrap();
    place.git("origin", &["add", "-A"]);
    place.git("origin", &["commit", "-qm", "large"]);
    let second = place.git("origin", &["rev-parse", "HEAD"]);
    let daemon = git_daemon(&place);
    let target = daemon.port;
    // Lets the beginning of an answer through and then nothing, so that git is shot in mid-fetch.
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://127.0.0.1:{}/origin", door.local_addr().unwrap().port());
    let pid = place.path("pid");
    let wrapper = format!("case \"$*\" in *fetch*) echo $$ >{};; esac; exec git \"$@\"", pid.display());
    place.environment.program = place.script("shot", &wrapper);
    std::thread::spawn(move || {
        for (number, connection) in door.incoming().flatten().enumerate() {
            let outside = std::net::TcpStream::connect(("127.0.0.1", target)).unwrap();
            let limit = if number == 1 { 50_000 } else { u64::MAX };
            let pid = pid.clone();
            std::thread::spawn(move || relay(connection, outside, limit, &pid));
        }
    });
    place.resolve(&url, &first).unwrap();
    assert_eq!(code(place.resolve(&url, &second).unwrap_err()), Code::RepoUnreachable);
    // What a fetch killed at the worst moments leaves behind.
    let mirror = mirror_of(&place);
    let left = ["packed-refs.lock", "refs/heads/main.lock", "shallow.lock", "objects/pack/tmp_pack_abc"];
    for name in left {
        fs::write(mirror.join(name), "half").unwrap();
    }
    place.check_out(&url, Some(&second), "work").unwrap();
    place.resolve(&url, "main").unwrap();
    assert!(left.iter().all(|name| !mirror.join(name).exists()));
}

#[test]
fn a_fetch_dies_with_belljar_and_gives_its_lock_back() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://127.0.0.1:{}/origin", silent.local_addr().unwrap().port());
    let mut belljar = child(&place, "checkout", &url, "main", "work").spawn().unwrap();
    let (mut connection, _) = silent.accept().unwrap();
    belljar.kill().unwrap();
    belljar.wait().unwrap();
    let is_lock = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.ends_with(".lock") && !name.starts_with("scratch")
    };
    let entries = fs::read_dir(place.path("cache/git")).unwrap().flatten();
    let lock = fs::File::open(entries.map(|entry| entry.path()).find(is_lock).unwrap()).unwrap();
    // The server never answers and never hangs up: only the death of git frees the lock.
    lock.lock().unwrap();
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut connection, &mut rest).unwrap();
}

#[test]
fn a_damaged_mirror_is_made_anew() {
    for damage in ["cut", "empty", "flip", "no head", "no pack"] {
        let place = Place::new();
        let (first, second) = place.history("origin");
        let daemon = git_daemon(&place);
        let url = format!("git://127.0.0.1:{}/origin", daemon.port);
        place.resolve(&url, "main").unwrap();
        let mirror = mirror_of(&place);
        for path in
            files_below(&mirror).iter().filter(|path| path.extension().is_some_and(|end| end == "pack"))
        {
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            match damage {
                "cut" => fs::write(path, &bytes[..middle]).unwrap(),
                "empty" => fs::write(path, b"").unwrap(),
                "flip" => {
                    bytes[middle] ^= 0x55;
                    fs::write(path, &bytes).unwrap();
                }
                "no head" => fs::remove_file(mirror.join("HEAD")).unwrap(),
                _ => fs::remove_file(path).unwrap(),
            }
        }
        for (commit, into) in [(&first, "one"), (&second, "two")] {
            place.check_out(&url, Some(commit), into).unwrap_or_else(|error| panic!("{damage}: {error}"));
            place.git(into, &["fsck", "--full"]);
        }
    }
}

#[test]
fn a_damaged_pack_in_the_cache_is_made_anew() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    place.check_out("origin", Some(&first), "one").unwrap();
    let in_packs = |path: &&PathBuf| path.to_string_lossy().contains(".packs/");
    for path in files_below(&place.path("cache")).iter().filter(in_packs) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        if path.extension().is_some_and(|end| end == "pack" || end == "idx") {
            fs::write(path, b"damaged").unwrap();
        }
    }
    place.check_out("origin", Some(&first), "two").unwrap();
    place.git("two", &["fsck", "--full"]);
}

#[test]
fn what_the_guest_writes_does_not_reach_the_cache() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    place.check_out("origin", Some(&first), "one").unwrap();
    for path in files_below(&place.path("one/.git")).iter().filter(|path| path.is_file()) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(path, b"written by the guest").unwrap();
    }
    place.check_out("origin", Some(&first), "two").unwrap();
    place.git("two", &["fsck", "--full"]);
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let mut place = Place::new();
    place.limits.fetch = Duration::from_secs(1);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for scheme in ["git", "http"] {
        let error = place.resolve(&format!("{scheme}://127.0.0.1:{port}/x"), "main").unwrap_err();
        assert!(matches!(error, RepoError::FetchTimeout { .. }), "{error}");
        assert_eq!(code(error), Code::RepoUnreachable);
    }
    // Both connections are closed: nothing of git is left that could hold them.
    for _ in 0..2 {
        let (mut connection, _) = silent.accept().unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).expect("the group was killed, so the connection ends");
    }
}

#[test]
fn a_missing_git_says_so() {
    let mut place = Place::new();
    let (first, _) = place.history("origin");
    place.environment.program = place.path("no-such-git");
    let fault = Fault::from(place.resolve("origin", &first).unwrap_err());
    assert_eq!(fault.code, Code::RepoFailed);
    assert!(fault.hints[0].contains("install git"));
}

fn toy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/toy_repo")
}

#[test]
fn the_toy_repository_has_its_pinned_commit() {
    let place = Place::new();
    let url = toy().display().to_string();
    let resolved = place.repositories().resolve(&place.source(&url), None).unwrap();
    assert_eq!(resolved.sha, TOY_COMMIT);
    assert_eq!(resolved.kind, SourceKind::Directory);
    place.check_out(&url, Some(TOY_COMMIT), "work").unwrap();
    let entries = tree_entries(&place.path("work")).unwrap();
    let names: Vec<String> = entries.iter().map(|entry| entry.path.display().to_string()).collect();
    assert_eq!(names, [".gitignore", "README.md", "calc.py", "test_calc.py"]);
}

#[test]
fn a_directory_is_pinned_by_its_content_alone() {
    let place = Place::new();
    for name in ["one", "deeper/two"] {
        place.write(&format!("{name}/.gitignore"), "*.pyc\n/.venv/\n");
        place.write(&format!("{name}/.gitattributes"), "*.txt text eol=crlf ident\n");
        place.write(&format!("{name}/a.txt"), "mixed\r\nlines\n$Id$\n");
        place.write(&format!("{name}/a.pyc"), name);
        place.write(&format!("{name}/.venv/lib/x"), name);
        place.script(&format!("{name}/run.sh"), "true");
        symlink("/etc/passwd", place.path(name).join("link")).unwrap();
    }
    place.write("home/.gitconfig", "[core]\n\tautocrlf = true\n[user]\n\tname = X\n");
    let first = place.check_out("one", None, "work1").unwrap();
    let second = place.check_out("deeper/two", None, "work2").unwrap();
    assert_eq!(first.sha, second.sha);
    assert_eq!(place.read("work1/a.txt"), "mixed\r\nlines\n$Id$\n");
    assert_eq!(fs::read_link(place.path("work1/link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::metadata(place.path("work1/run.sh")).unwrap().mode() & 0o777, 0o755);
    assert!(!place.path("work1/a.pyc").exists() && !place.path("work1/.venv").exists());
    assert_eq!(place.git("work1", &["status", "--porcelain"]), "");
}

#[test]
fn a_directory_that_changed_is_drift() {
    let place = Place::new();
    place.write("plain/a.txt", "one\n");
    let pinned = place.check_out("plain", None, "work1").unwrap().sha;
    place.write("plain/a.txt", "two\n");
    let fault = Fault::from(place.check_out("plain", Some(&pinned), "work2").unwrap_err());
    assert_eq!(fault.code, Code::RepoDrift);
    let now = place.repositories().resolve(&place.source("plain"), None).unwrap().sha;
    assert!(fault.message.contains(&pinned) && fault.message.contains(&now));
    assert!(fault.hints[0].contains(&now));
    assert_eq!(code(place.resolve("plain", "main").unwrap_err()), Code::RepoRefused);
    // A plan made before the change still gets its bytes while they are in the cache, never others.
    fs::remove_dir_all(place.path("cache")).unwrap();
    let kind = SourceKind::Directory;
    let resolved = ResolvedCommit { sha: pinned, tree: String::new(), commit_time: 0, kind };
    let (source, into, logs) = (place.source("plain"), place.path("work3"), place.logs("git_clone"));
    let late = place.repositories().clone_history(&source, &resolved, &into, &logs);
    assert_eq!(code(late.unwrap_err()), Code::RepoDrift);
}

#[test]
fn a_directory_with_what_git_passes_over_is_refused() {
    type Case = (&'static str, fn(&Place));
    let cases: [Case; 4] = [
        ("a fifo", |place| make_fifo(&place.path("plain/sub/odd"))),
        ("a socket", |place| {
            drop(std::os::unix::net::UnixListener::bind(place.path("plain/sub/odd")).unwrap());
        }),
        ("another git repository", |place| {
            place.history("plain/sub/odd");
        }),
        ("another git repository", |place| fs::create_dir_all(place.path("plain/sub/odd/.git")).unwrap()),
    ];
    for (words, make) in cases {
        let place = Place::new();
        place.write("plain/sub/a.txt", "x\n");
        make(&place);
        let error = place.repositories().resolve(&place.source("plain"), None).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(code(error), Code::RepoRefused);
        place.write("plain/.gitignore", "odd\n");
        place.check_out("plain", None, "work").unwrap();
    }
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn patches_apply_and_cannot_escape() {
    let place = Place::new();
    let (first, _) = place.history("origin");
    place.check_out("origin", Some(&first), "work").unwrap();
    fs::create_dir(place.path("outside")).unwrap();
    symlink(place.path("outside"), place.path("work/exit")).unwrap();
    let apply = |text: &str| {
        let patch = place.write("change.diff", text);
        place.repositories().apply_patch(&place.path("work"), &patch, &place.logs("patch"))
    };
    apply("--- a/code.txt\n+++ b/code.txt\n@@ -1 +1 @@\n-first\n+patched\n").unwrap();
    assert_eq!(place.read("work/code.txt"), "patched\n");
    apply(" \n").unwrap();
    let new = |path: &str, mode: &str, line: &str| {
        format!(
            "diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{line}\n"
        )
    };
    let file = |path: &str| new(path, "100644", "evil");
    let door = new("door", "120000", &place.path("outside").display().to_string());
    for text in [
        file("exit/file"),
        file("../file"),
        file(".git/hooks/post-checkout"),
        file(".GIT/config"),
        format!("{door}\\ No newline at end of file\n{}", file("door/file")),
        "--- a/code.txt\n+++ b/code.txt\n@@ -1 +1 @@\n-other\n+x\n".to_owned(),
        "not a patch at all\n".to_owned(),
    ] {
        assert_eq!(code(apply(&text).expect_err(&text)), Code::RepoPatch);
    }
    assert!(fs::read_dir(place.path("outside")).unwrap().next().is_none());
    assert!(!place.path("file").exists() && !place.path("work/.git/hooks").exists());
    assert!(!place.read("logs/patch_stderr.txt").is_empty());
}

#[test]
fn a_tree_digest_sees_every_difference_and_only_content() {
    let place = Place::new();
    for name in ["one", "two"] {
        place.write(&format!("{name}/a"), "1");
        place.write(&format!("{name}/sub/b"), "2");
        place.write(&format!("{name}/.git/HEAD"), name);
        place.script(&format!("{name}/run"), "true");
        symlink("a", place.path(name).join("link")).unwrap();
    }
    let digest = |name: &str| tree_digest(&place.path(name)).unwrap();
    let before = digest("one");
    assert_eq!(before, digest("two"));
    assert_eq!((before.files, before.bytes, before.unread), (3, 17, 0));
    let changes: [fn(&Place); 6] = [
        |place| drop(place.write("two/a", "x")),
        |place| fs::rename(place.path("two/a"), place.path("two/c")).unwrap(),
        |place| fs::set_permissions(place.path("two/run"), fs::Permissions::from_mode(0o644)).unwrap(),
        |place| {
            fs::remove_file(place.path("two/link")).unwrap();
            symlink("b", place.path("two/link")).unwrap();
        },
        |place| fs::create_dir(place.path("two/empty")).unwrap(),
        |place| drop(place.write("two/sub/.git", "nested")),
    ];
    let mut seen = BTreeSet::from([before.digest]);
    for change in changes {
        change(&place);
        assert!(seen.insert(digest("two").digest));
    }
}

#[test]
fn strange_entries_are_digested_without_being_opened() {
    use std::os::unix::ffi::OsStringExt;
    let place = Place::new();
    fs::create_dir(place.path("odd")).unwrap();
    make_fifo(&place.path("odd/fifo"));
    drop(std::os::unix::net::UnixListener::bind(place.path("odd/socket")).unwrap());
    fs::write(place.path("odd").join(OsString::from_vec(vec![0xff, b'\n', 0xfe])), "x").unwrap();
    symlink("/", place.path("odd/root")).unwrap();
    fs::File::create(place.path("odd/huge")).unwrap().set_len(1 << 43).unwrap();
    let deep = (0..300).fold(place.path("odd/deep"), |deep, _| deep.join("d"));
    fs::create_dir_all(&deep).unwrap();
    let entries = tree_entries(&place.path("odd")).unwrap();
    let kind = |name: &str| entries.iter().find(|entry| entry.path == Path::new(name)).unwrap().kind;
    assert_eq!(kind("fifo"), EntryKind::Fifo);
    assert_eq!(kind("socket"), EntryKind::Socket);
    assert_eq!(kind("root"), EntryKind::Symlink);
    assert_eq!(kind("huge"), EntryKind::TooLarge);
    let digest = tree_digest(&place.path("odd")).unwrap();
    assert_eq!(digest.unread, 2);
    assert_eq!(digest, tree_digest(&place.path("odd")).unwrap());
}

fn need_root() {
    assert!(rustix::process::geteuid().is_root(), "this test changes owners: run it as root");
}

fn give_to(path: &Path, user: &str) {
    assert!(Command::new("chown").args(["-hR", user]).arg(path).status().unwrap().success());
}

#[test]
fn root_reads_the_repository_of_another_user() {
    need_root();
    let place = Place::new();
    let (first, _) = place.history("origin");
    give_to(&place.path("origin"), "1234:1234");
    place.check_out("origin", Some(&first), "work").unwrap();
    place.check_out("origin", Some("main"), "work2").unwrap();
    assert_eq!(fs::metadata(place.path("work/code.txt")).unwrap().uid(), 0);
}

#[test]
fn an_ordinary_user_works_and_unreadable_files_are_entries() {
    need_root();
    let place = Place::new();
    let (first, _) = place.history("origin");
    let root_owned = Place::new();
    root_owned.history("theirs");
    fs::set_permissions(root_owned.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let theirs = root_owned.path("theirs").display().to_string();
    place.write("plain/secret", "x");
    place.write("plain/closed/inner", "x");
    for name in ["plain/secret", "plain/closed"] {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    fs::copy(std::env::current_exe().unwrap(), place.path("self")).unwrap();
    give_to(place.root.path(), "1234:1234");
    let cases = [
        ("checkout", "origin", first.as_str(), "work"),
        ("checkout", &theirs, "v1", "other"),
        ("digest", "plain", "", ""),
    ];
    for (action, url, commit, into) in cases {
        let command = child(&place, action, url, commit, into);
        let output = Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups"])
            .arg(place.path("self"))
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .output()
            .expect("this test needs setpriv");
        assert!(output.status.success(), "{action}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(fs::metadata(place.path("work/code.txt")).unwrap().uid(), 1234);
}

/// This program again, in a process of its own.
fn child(place: &Place, action: &str, url: &str, commit: &str, into: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_entry", "--ignored", "--nocapture"]).stdout(Stdio::null());
    command.env("BELLJAR_CHILD_ROOT", place.root.path()).env("BELLJAR_CHILD_ACTION", action);
    command.env("BELLJAR_CHILD_URL", url).env("BELLJAR_CHILD_COMMIT", commit).env("BELLJAR_CHILD_INTO", into);
    command
}

#[test]
#[ignore = "the entry point of child processes, not a test"]
fn child_entry() {
    let given = |name: &str| std::env::var(format!("BELLJAR_CHILD_{name}")).unwrap();
    let root = PathBuf::from(given("ROOT"));
    if let Ok(mask) = std::env::var("BELLJAR_CHILD_UMASK") {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(u32::from_str_radix(&mask, 8).unwrap()));
    }
    if given("ACTION") == "digest" {
        let entries = tree_entries(&root.join(given("URL"))).unwrap();
        let unreadable = entries.iter().filter(|entry| entry.kind == EntryKind::Unreadable).count();
        assert_eq!(unreadable, 2, "{entries:?}");
        return;
    }
    let environment = GitEnvironment::from_variables(std::env::vars_os());
    let repositories = Repositories::open(&root.join("cache"), environment).unwrap();
    let source = Source::parse(&given("URL"), &root).unwrap();
    let resolved = repositories.resolve(&source, Some(&given("COMMIT"))).unwrap();
    let (into, logs) = (root.join(given("INTO")), GitLogs::in_folder(&root.join("logs"), "git"));
    repositories.clone_history(&source, &resolved, &into, &logs).unwrap();
    repositories.checkout(&source, &resolved, &into, &logs).unwrap();
}
