//! A failure as a person meets it: one stable code, one message, what to do next.

use std::error::Error;
use std::fmt;

use serde::Serialize;

/// What kind of failure a code is; it decides the exit code of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The command line or a task file is wrong.
    Usage,
    /// This machine cannot enforce or provide what was asked for.
    Environment,
    /// Something around the task failed: disk, git, network, a kernel call.
    Infrastructure,
    /// Bytes that were pinned are not the bytes found.
    Drift,
    /// What was asked for was done, and did not succeed.
    Failed,
    /// The same was done twice, and came to something else.
    Unstable,
    /// A person or a signal asked for the end.
    Interrupted,
}

impl Kind {
    /// The exit code a command ends with after such a failure.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Usage => 2,
            Kind::Environment => 3,
            Kind::Infrastructure => 4,
            Kind::Drift => 5,
            Kind::Failed => 1,
            Kind::Unstable => 6,
            Kind::Interrupted => 130,
        }
    }
}

macro_rules! catalogue {
    ($($variant:ident, $name:literal, $kind:ident, $cause:literal, $remedy:literal;)*) => {
        /// Every failure code Belljar can answer with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $cause] $variant,)* }

        impl Code {
            /// All codes, in the order of the catalogue.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];
            /// The stable name, as printed and documented.
            pub fn name(self) -> &'static str { match self { $(Code::$variant => $name,)* } }
            /// The kind of failure.
            pub fn kind(self) -> Kind { match self { $(Code::$variant => Kind::$kind,)* } }
            /// What usually causes it.
            pub fn cause(self) -> &'static str { match self { $(Code::$variant => $cause,)* } }
            /// What to do about it.
            pub fn remedy(self) -> &'static str { match self { $(Code::$variant => $remedy,)* } }
        }
    };
}

catalogue! {
    SpecUnreadable, "spec-unreadable", Usage, "the task file cannot be read", "check the path; TASK is a task.yaml or the folder that holds it";
    SpecSyntax, "spec-syntax", Usage, "the task file is not valid YAML or JSON", "mend the line that is shown";
    SpecUnknownKey, "spec-unknown-key", Usage, "a key that the task format does not know", "use the nearest valid key that is shown, or see schema/task.json";
    SpecType, "spec-type", Usage, "a value of the wrong type, or a required key is missing", "write the value in the form that is shown";
    SpecValue, "spec-value", Usage, "a value outside what is allowed", "choose a value from the range that is shown";
    SpecVersion, "spec-version", Usage, "the file's format version is newer than this Belljar", "upgrade Belljar, or write an older version";
    RepoSource, "repo-source", Usage, "the repository's address is not understood, does not exist or cannot be read", "give a path, a file:// or git URL, a bundle, or a plain directory";
    RepoCommitMissing, "repo-commit-missing", Usage, "repo.commit is required for a git repository", "pin the commit: git rev-parse HEAD";
    RepoRefused, "repo-refused", Usage, "the repository uses something Belljar refuses", "see the message";
    RepoUnreachable, "repo-unreachable", Infrastructure, "the repository could not be fetched", "check address, network and credentials";
    RepoCommitUnknown, "repo-commit-unknown", Infrastructure, "the commit is not in the repository", "check repo.commit; a force-push may have removed it";
    RepoDrift, "repo-drift", Drift, "a directory's content is not the content that was pinned", "restore the content, or pin the new commit id that is shown";
    RepoFailed, "repo-failed", Infrastructure, "git failed on this machine", "see git's own message in logs/";
    RepoPatch, "repo-patch", Usage, "a patch does not apply to the checkout", "make the patch against the pinned commit; git's own message names the file";
    ImageUnknown, "image-unknown", Usage, "the image reference is not understood, or nothing is there", "check the spelling; docs/images.md lists what an image can be";
    ImageAbsent, "image-absent", Usage, "the image is not in the store, and may not be fetched now", "belljar image ls lists what is there; belljar image pull NAME fetches it";
    ImagePlatform, "image-platform", Usage, "the image has nothing for this kind of machine", "choose an image from the list in the message";
    ImageRefused, "image-refused", Usage, "the image holds something that Belljar refuses", "the message names it; have the image made anew";
    ImageCorrupt, "image-corrupt", Infrastructure, "bytes of the image are not what they should be", "try again; belljar image fsck --repair mends the store";
    ImageForeignOwners, "image-foreign-owners", Environment, "files of the image belong to users whom the caller cannot give files to", "run as root, or give every file to the caller: --squash";
    ImageInUse, "image-in-use", Usage, "the image is in use", "end the sandbox or the process that uses it first";
    ImageStore, "image-store", Infrastructure, "the store of images could not do something", "the message says what and where; check the folder and its disk";
    RegistryDenied, "registry-denied", Infrastructure, "the registry wants other credentials", "log in to it with docker login, or set DOCKER_CONFIG to where the credentials are";
    RegistryUnreachable, "registry-unreachable", Infrastructure, "the registry cannot be reached", "check address, network, proxy and certificates";
    RegistryBusy, "registry-busy", Infrastructure, "the registry allows no more requests now", "wait until the time in the message, log in, or use a mirror";
    RegistryFailed, "registry-failed", Infrastructure, "the registry answered with an error or with nonsense", "try again; the message has its own words";
    ProgramMissing, "program-missing", Environment, "a program that is needed cannot be started", "install it, or put it into a folder of PATH";
    BootstrapFailed, "bootstrap-failed", Infrastructure, "mmdebstrap could not make the image", "the message has its last words; check the names of packages and the mirror";
    ImageDrift, "image-drift", Drift, "the image is not the one that belljar.lock pins", "if the change is meant, accept it with --update-lock and commit belljar.lock; if not, bring the pinned image back";
    ImageUnpinned, "image-unpinned", Usage, "the image is not pinned in belljar.lock, or cannot be", "run once without --frozen to pin an image, or with --update-lock for a root directory, and commit belljar.lock; `host` can never be pinned";
    LockUnreadable, "lock-unreadable", Usage, "belljar.lock cannot be read or does not say what a lock says", "mend the line that the message names; after a merge keep the lines of both sides, each fact once";
    LockVersion, "lock-version", Usage, "belljar.lock was written by a newer Belljar", "upgrade Belljar";
    LockUnwritable, "lock-unwritable", Infrastructure, "belljar.lock cannot be written", "make the folder writable, or update the lock in a copy of it";
    DockerfileWrong, "dockerfile-wrong", Usage, "the Dockerfile is not understood, or asks for something that is not there", "the message names the line and what to write";
    DockerfileRefused, "dockerfile-refused", Usage, "the policy forbids something in the Dockerfile", "follow the remedy of each rule, or change its severity with --policy";
    BaseMissing, "base-missing", Usage, "an image that the Dockerfile starts or copies from is not in the store", "pull or import it first";
    BuildFailed, "build-failed", Failed, "a RUN of the Dockerfile failed", "its last lines are shown; mend the command";
    BuildDiffers, "build-differs", Unstable, "two builds of the same are not the same", "the message names what differs first; docs/build.md says what usually does";
    BuildBroken, "build-broken", Infrastructure, "a build could not go on", "the message names what failed; check the disk, then run it again";
    PathEscapes, "path-escapes", Usage, "a path leads out of the folder it must stay in", "use a path inside the folder";
    OutputUnwritable, "output-unwritable", Infrastructure, "the output folder cannot be written", "choose another folder with --out, or mend its permissions";
    DiskFull, "disk-full", Infrastructure, "the disk is full", "free room (belljar runs prune), or choose another folder with --out";
    IsolationUnavailable, "isolation-unavailable", Environment, "this machine cannot enforce an isolation the task asks for", "belljar doctor says what to change; isolation: best-effort is the explicit way out";
    LimitsUnavailable, "limits-unavailable", Environment, "this user may not set the limits the task asks for", "belljar doctor prints the commands that delegate a cgroup; isolation: best-effort is the explicit way out";
    NetworkUnavailable, "network-unavailable", Environment, "the setup network cannot be provided here", "belljar doctor says what to change, or set setup.network: none";
    NetworkFailed, "network-failed", Infrastructure, "the gateway of the setup network failed", "run it again; if it happens again, please report it with the record";
    SandboxFailed, "sandbox-failed", Infrastructure, "the sandbox could not be made or died", "run belljar doctor; the message names the failing step";
    SandboxUnknown, "sandbox-unknown", Usage, "no such sandbox", "belljar sandbox ls lists them; one whose time is up is gone";
    ExecUnknown, "exec-unknown", Usage, "the sandbox has no such command", "belljar sandbox ps ID lists them";
    SnapshotUnknown, "snapshot-unknown", Usage, "no such snapshot", "belljar sandbox snapshot --list lists them";
    ArchiveRefused, "archive-refused", Infrastructure, "files could not be carried in or out", "the message names the entry";
    RunUnknown, "run-unknown", Usage, "no such run", "belljar runs ls lists them";
    RecordUnreadable, "record-unreadable", Infrastructure, "a record on disk cannot be read", "the file may be damaged; the message names it";
    RecordVersion, "record-version", Usage, "the record was written by a newer Belljar", "upgrade Belljar";
    Interrupted, "interrupted", Interrupted, "a person or a signal asked for the end", "run it again";
    Usage, "usage", Usage, "the command line is not understood", "see --help";
    Internal, "internal", Infrastructure, "a fault in Belljar itself", "please report it with the record";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A failure with its code, its message and its hints; every door prints this one type.
#[derive(Debug)]
pub struct Fault {
    /// The stable code.
    pub code: Code,
    /// One message: lowercase, no full stop; may have further lines (a source snippet).
    pub message: String,
    /// What to do next, most useful first.
    pub hints: Vec<String>,
    /// The error below.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    /// A fault with a message and no hints.
    pub fn new(code: Code, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into(), hints: Vec::new(), source: None }
    }

    /// The same fault with one more hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Fault {
        self.hints.push(hint.into());
        self
    }

    /// The same fault with the error that caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Error + Send + Sync + 'static) -> Fault {
        self.source = Some(Box::new(source));
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|error| error as &(dyn Error + 'static))
    }
}
