//! Every key of the task format and its aliases, in one table: the reader and the schema both follow it.

/// A key and the other names it goes by.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
}

/// A part of the task and the keys it knows.
pub(crate) struct Place {
    /// The path from the top, empty for the top itself.
    pub(crate) path: &'static str,
    /// The type that holds it, as the schema names it.
    pub(crate) definition: &'static str,
    pub(crate) keys: &'static [Key],
}

/// A key at the top that stands for one deeper down.
pub(crate) struct Shortcut {
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
}

const fn key(name: &'static str) -> Key {
    Key { name, aliases: &[] }
}

const fn also(name: &'static str, aliases: &'static [&'static str]) -> Key {
    Key { name, aliases }
}

pub(crate) static TOP: Place = Place {
    path: "",
    definition: "TaskSpec",
    keys: &[
        key("version"),
        key("id"),
        key("suite"),
        key("labels"),
        key("description"),
        key("repo"),
        key("environment"),
        key("setup"),
        key("run"),
        key("expect"),
        key("collect"),
        key("env"),
        key("setup_commands"),
        key("test_command"),
        key("expected_fail"),
    ],
};

pub(crate) static SHORTCUTS: &[Shortcut] = &[
    Shortcut { name: "env", target: "environment.env" },
    Shortcut { name: "setup_commands", target: "setup.commands" },
    Shortcut { name: "test_command", target: "run.command" },
    Shortcut { name: "expected_fail", target: "expect.result" },
];

pub(crate) static REPO: Place = Place {
    path: "repo",
    definition: "RepoSpec",
    keys: &[also("url", &["path"]), also("commit", &["ref", "base_commit"]), key("patches"), key("compat")],
};

pub(crate) static COMPAT: Place =
    Place { path: "repo.compat", definition: "CompatStep", keys: &[key("name"), key("command")] };

pub(crate) static ENVIRONMENT: Place = Place {
    path: "environment",
    definition: "EnvironmentSpec",
    keys: &[
        also("image", &["docker_image"]),
        key("workdir"),
        key("network"),
        also("timeout_sec", &["timeout"]),
        key("env"),
        key("isolation"),
        also("limits", &["resources"]),
    ],
};

pub(crate) static LIMITS: Place = Place {
    path: "environment.limits",
    definition: "Limits",
    keys: &[key("memory"), key("cpus"), key("pids"), key("output")],
};

pub(crate) static SETUP: Place = Place {
    path: "setup",
    definition: "SetupSpec",
    keys: &[key("commands"), key("joined"), key("network"), also("timeout_sec", &["timeout"])],
};

pub(crate) static RUN: Place = Place { path: "run", definition: "RunSpec", keys: &[key("command")] };

pub(crate) static EXPECT: Place = Place {
    path: "expect",
    definition: "Expectation",
    keys: &[key("result"), also("exit_codes", &["exit_code"]), key("stdout"), key("stderr")],
};

/// All places, the top first.
pub(crate) static PLACES: &[&Place] = &[&TOP, &REPO, &COMPAT, &ENVIRONMENT, &LIMITS, &SETUP, &RUN, &EXPECT];

impl Place {
    /// The key's proper name, if the place knows it.
    pub(crate) fn proper(&self, written: &str) -> Option<&'static str> {
        self.keys.iter().find(|key| key.name == written || key.aliases.contains(&written)).map(|key| key.name)
    }

    /// Where this is, as words for a message.
    pub(crate) fn words(&self) -> String {
        match self.path {
            "" => "at the top of the task".to_owned(),
            path => format!("in `{path}`"),
        }
    }

    /// The path of a key here.
    pub(crate) fn path_of(&self, name: &str) -> String {
        match self.path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    /// What to say about a key that is not known here.
    pub(crate) fn suggestions(&self, written: &str) -> Vec<String> {
        let mut hints = Vec::new();
        match (self.nearest(written), elsewhere(written)) {
            (_, Some(places)) => hints.push(format!("`{written}` belongs {places}")),
            (Some(near), None) => hints.push(format!("did you mean `{near}`?")),
            (None, None) => {}
        }
        let names: Vec<&str> = self.keys.iter().map(|key| key.name).collect();
        hints.push(format!("valid keys here: {}", names.join(", ")));
        hints
    }

    fn nearest(&self, written: &str) -> Option<&'static str> {
        let names = self.keys.iter().flat_map(|key| std::iter::once(&key.name).chain(key.aliases));
        nearest(written, names.copied())
    }
}

/// The places that know exactly this key, as words; nothing when there is none.
fn elsewhere(written: &str) -> Option<String> {
    let places: Vec<String> =
        PLACES.iter().filter(|place| place.proper(written).is_some()).map(|place| place.words()).collect();
    (!places.is_empty()).then(|| places.join(" or "))
}

/// Nothing longer is compared with the known keys.
const LONGEST_KEY: usize = 64;

/// The candidate most like what was written, if any is like it at all.
pub(crate) fn nearest<'a>(written: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if written.len() > LONGEST_KEY {
        return None;
    }
    let written = written.to_ascii_lowercase().replace('-', "_");
    candidates
        .map(|candidate| (strsim::jaro_winkler(&written, &candidate.replace('-', "_")), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}
