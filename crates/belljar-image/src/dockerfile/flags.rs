//! Flags of instructions, and the mounts of RUN.

use super::{Problem, nearest};

/// One flag as it was written, without quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) name: String,
    pub(super) value: Option<String>,
}

/// Cuts the flags off; what is left is the rest of the line.
pub(super) fn cut(line: &str) -> (Vec<String>, &str) {
    let mut flags = Vec::new();
    let mut rest = line.trim_start();
    while rest.starts_with("--") {
        let (word, after) = word(rest);
        rest = after.trim_start();
        if word == "--" {
            break;
        }
        flags.push(word);
    }
    (flags, rest.trim())
}

/// One word, without its quotes, and what comes after it.
fn word(text: &str) -> (String, &str) {
    let mut word = String::new();
    let mut quote = None;
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (None, letter) if letter.is_whitespace() => return (word, &text[at..]),
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if open == letter => quote = None,
            (_, '\\') => word.extend(letters.next().map(|(_, letter)| letter)),
            (_, letter) => word.push(letter),
        }
    }
    (word, "")
}

/// The flags of one instruction, each of which must be taken by its name.
pub(super) struct Flags {
    flags: Vec<Flag>,
}

impl Flags {
    /// Only known names, and only `repeatable` ones more than once.
    pub(super) fn new(words: Vec<String>, known: &'static [&'static str]) -> Result<Flags, Problem> {
        let mut flags: Vec<Flag> = Vec::new();
        for word in words {
            let bare = word.trim_start_matches("--");
            let (name, value) =
                bare.split_once('=').map_or((bare, None), |(name, value)| (name, Some(value)));
            if !known.contains(&name) {
                let nearest = nearest(name, known).map(|name| format!("--{name}"));
                return Err(Problem::UnknownFlag { flag: name.to_owned(), nearest });
            }
            if !matches!(name, "mount" | "exclude") && flags.iter().any(|flag| flag.name == name) {
                return Err(Problem::FlagTwice(name.to_owned()));
            }
            flags.push(Flag { name: name.to_owned(), value: value.map(str::to_owned) });
        }
        Ok(Flags { flags })
    }

    /// A flag with a value.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Problem> {
        let flag = self.flags.iter().find(|flag| flag.name == name);
        flag.map(|flag| flag.value.clone().ok_or_else(|| Problem::FlagValue(name.to_owned()))).transpose()
    }

    /// A flag that may be given several times.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, Problem> {
        let flags = self.flags.iter().filter(|flag| flag.name == name);
        flags.map(|flag| flag.value.clone().ok_or_else(|| Problem::FlagValue(name.to_owned()))).collect()
    }

    /// A flag that is there, `=true` or `=false`.
    pub(super) fn switch(&self, name: &str) -> Result<bool, Problem> {
        match self.flags.iter().find(|flag| flag.name == name).map(|flag| flag.value.as_deref()) {
            None | Some(Some("false")) => Ok(false),
            Some(None | Some("true")) => Ok(true),
            Some(Some(_)) => Err(Problem::Switch(name.to_owned())),
        }
    }
}

/// Who may use a cache at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// All at once.
    Shared,
    /// Each its own.
    Private,
    /// One after the other.
    Locked,
}

/// What kind of thing is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountKind {
    /// Files of the context, a stage or an image.
    Bind {
        /// The stage or image; the context when none.
        from: Option<String>,
        /// What of it.
        source: String,
        /// Whether the step may write; what it writes is thrown away.
        writable: bool,
    },
    /// A folder that stays from build to build.
    Cache {
        /// Which one.
        id: String,
        /// The stage or image it starts from.
        from: Option<String>,
        /// What of it.
        source: String,
        /// Who may use it at once.
        sharing: Sharing,
        /// Whether the step may only read.
        read_only: bool,
        /// Its folder's owner and mode where it is made.
        ownership: Ownership,
    },
    /// Memory that is gone after the step.
    Tmpfs {
        /// Its size in bytes.
        size: Option<u64>,
    },
    /// A file the caller hands in, that is in no layer.
    Secret {
        /// Which one.
        id: String,
        /// The variable it becomes, instead of a file or beside it.
        env: Option<String>,
        /// The step fails without it.
        required: bool,
        /// The file's owner and mode.
        ownership: Ownership,
    },
}

/// Who owns what is mounted, and its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Ownership {
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The mode.
    pub mode: u32,
}

/// One `--mount` of RUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it is seen; only a secret that is a variable has none.
    pub target: Option<String>,
    /// What it is.
    pub kind: MountKind,
}

const KINDS: &[&str] = &["bind", "cache", "tmpfs", "secret", "ssh"];

/// Understands the value of one `--mount`.
pub(super) fn mount(text: &str) -> Result<Mount, Problem> {
    let mut fields = Fields::new(text)?;
    let kind = fields.take(&["type"]).flatten().unwrap_or_else(|| "bind".to_owned());
    let mount = match kind.as_str() {
        "bind" => bind(&mut fields)?,
        "cache" => cache(&mut fields)?,
        "tmpfs" => tmpfs(&mut fields)?,
        "secret" => secret(&mut fields)?,
        "ssh" => return Err(Problem::Ssh),
        _ => {
            let nearest = nearest(&kind, KINDS).map(str::to_owned);
            return Err(Problem::MountKind { kind, nearest });
        }
    };
    fields.finish(&kind)?;
    Ok(mount)
}

struct Fields(Vec<(String, Option<String>)>);

impl Fields {
    fn new(text: &str) -> Result<Fields, Problem> {
        let mut fields: Vec<(String, Option<String>)> = Vec::new();
        for field in text.split(',').filter(|field| !field.is_empty()) {
            let (name, value) =
                field.split_once('=').map_or((field, None), |(name, value)| (name, Some(value)));
            let name = name.to_ascii_lowercase();
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(Problem::MountTwice(name));
            }
            fields.push((name, value.map(str::to_owned)));
        }
        Ok(Fields(fields))
    }

    fn take(&mut self, names: &[&str]) -> Option<Option<String>> {
        let at = self.0.iter().position(|(name, _)| names.contains(&name.as_str()))?;
        Some(self.0.remove(at).1)
    }

    fn text(&mut self, names: &[&str]) -> Result<Option<String>, Problem> {
        match self.take(names) {
            None => Ok(None),
            Some(Some(value)) if !value.is_empty() => Ok(Some(value)),
            Some(_) => Err(Problem::MountValue(names[0].to_owned())),
        }
    }

    fn switch(&mut self, names: &[&str]) -> Result<Option<bool>, Problem> {
        match self.take(names) {
            None => Ok(None),
            Some(None) => Ok(Some(true)),
            Some(Some(value)) => match value.to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(Some(true)),
                "false" | "0" => Ok(Some(false)),
                _ => Err(Problem::MountValue(names[0].to_owned())),
            },
        }
    }

    fn number(&mut self, name: &'static str, radix: u32) -> Result<Option<u32>, Problem> {
        let Some(text) = self.text(&[name])? else { return Ok(None) };
        u32::from_str_radix(&text, radix).map(Some).map_err(|_| Problem::MountValue(name.to_owned()))
    }

    fn ownership(&mut self, mode: u32) -> Result<Ownership, Problem> {
        Ok(Ownership {
            uid: self.number("uid", 10)?.unwrap_or(0),
            gid: self.number("gid", 10)?.unwrap_or(0),
            mode: self.number("mode", 8)?.unwrap_or(mode),
        })
    }

    fn target(&mut self) -> Result<Option<String>, Problem> {
        self.text(&["target", "dst", "destination"])
    }

    fn read_only(&mut self) -> Result<Option<bool>, Problem> {
        let read_only = self.switch(&["ro", "readonly"])?;
        let writable = self.switch(&["rw", "readwrite"])?;
        Ok(read_only.or(writable.map(|writable| !writable)))
    }

    fn finish(self, kind: &str) -> Result<(), Problem> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((field, _)) => Err(Problem::MountField { kind: kind.to_owned(), field }),
        }
    }
}

fn bind(fields: &mut Fields) -> Result<Mount, Problem> {
    let target = fields.target()?.ok_or(Problem::MountTarget)?;
    let kind = MountKind::Bind {
        from: fields.text(&["from"])?,
        source: fields.text(&["source", "src"])?.unwrap_or_else(|| "/".to_owned()),
        writable: fields.read_only()? == Some(false),
    };
    Ok(Mount { target: Some(target), kind })
}

fn cache(fields: &mut Fields) -> Result<Mount, Problem> {
    let target = fields.target()?.ok_or(Problem::MountTarget)?;
    let sharing = match fields.text(&["sharing"])?.as_deref() {
        None | Some("shared") => Sharing::Shared,
        Some("private") => Sharing::Private,
        Some("locked") => Sharing::Locked,
        Some(_) => return Err(Problem::MountValue("sharing".to_owned())),
    };
    let kind = MountKind::Cache {
        id: fields.text(&["id"])?.unwrap_or_else(|| target.clone()),
        from: fields.text(&["from"])?,
        source: fields.text(&["source", "src"])?.unwrap_or_else(|| "/".to_owned()),
        sharing,
        read_only: fields.read_only()?.unwrap_or(false),
        ownership: fields.ownership(0o755)?,
    };
    Ok(Mount { target: Some(target), kind })
}

fn tmpfs(fields: &mut Fields) -> Result<Mount, Problem> {
    let target = fields.target()?.ok_or(Problem::MountTarget)?;
    let size = fields.text(&["size"])?.map(|text| bytes(&text).ok_or(Problem::MountValue("size".to_owned())));
    Ok(Mount { target: Some(target), kind: MountKind::Tmpfs { size: size.transpose()? } })
}

fn bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let shift = match text.chars().last()? {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        _ => 0,
    };
    let number: u64 = text.trim_end_matches(['k', 'm', 'g']).parse().ok()?;
    number.checked_mul(1 << shift)
}

fn secret(fields: &mut Fields) -> Result<Mount, Problem> {
    let target = fields.target()?;
    let source = fields.text(&["id"])?.or(fields.text(&["source", "src"])?);
    let name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
    let id = source.or(target.as_ref().map(name)).filter(|id| !id.is_empty()).ok_or(Problem::SecretId)?;
    let env = fields.text(&["env"])?;
    let file = target.or_else(|| env.is_none().then(|| format!("/run/secrets/{}", name(&id))));
    let required = fields.switch(&["required"])?.unwrap_or(false);
    let ownership = fields.ownership(0o400)?;
    Ok(Mount { target: file, kind: MountKind::Secret { id, env, required, ownership } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_end_with_the_first_other_word() {
        let cut = |line| {
            let (flags, rest) = cut(line);
            (flags.join("|"), rest.to_owned())
        };
        assert_eq!(cut("--a=b --c  d --e"), ("--a=b|--c".to_owned(), "d --e".to_owned()));
        assert_eq!(cut("--a='b c' d"), ("--a=b c".to_owned(), "d".to_owned()));
        assert_eq!(cut("-- --a b"), (String::new(), "--a b".to_owned()));
        assert_eq!(cut("-a b"), (String::new(), "-a b".to_owned()));
        assert_eq!(cut(r#"--a=b\ c --d="e\"f""#), ("--a=b c|--d=e\"f".to_owned(), String::new()));
    }

    #[test]
    fn mounts_are_read_with_their_defaults() {
        let bind = mount("target=/x").unwrap();
        let kind = MountKind::Bind { from: None, source: "/".to_owned(), writable: false };
        assert_eq!(bind, Mount { target: Some("/x".to_owned()), kind });
        let MountKind::Cache { id, sharing, ownership, .. } =
            mount("type=cache,dst=/c,sharing=locked,uid=5,mode=700").unwrap().kind
        else {
            panic!("no cache");
        };
        assert_eq!((id.as_str(), sharing), ("/c", Sharing::Locked));
        assert_eq!(ownership, Ownership { uid: 5, gid: 0, mode: 0o700 });
        assert_eq!(
            mount("type=tmpfs,target=/t,size=2m").unwrap().kind,
            MountKind::Tmpfs { size: Some(2 << 20) }
        );
        assert_eq!(mount("type=secret,id=k").unwrap().target.as_deref(), Some("/run/secrets/k"));
        assert_eq!(mount("type=secret,id=k,env=K").unwrap().target, None);
        assert!(
            matches!(mount("type=secret,target=/a/b").unwrap().kind, MountKind::Secret { id, .. } if id == "b")
        );
    }

    #[test]
    fn wrong_mounts_are_refused() {
        for (text, part) in [
            ("type=ssh", "ssh"),
            ("type=cach,target=/x", "`cache`"),
            ("type=bind", "target"),
            ("type=cache,target=/x,size=1", "size"),
            ("type=cache,target=/x,sharing=all", "sharing"),
            ("type=tmpfs,target=/x,size=big", "size"),
            ("type=secret", "id"),
            ("target=/x,target=/y", "twice"),
            ("target=/x,rw=perhaps", "rw"),
        ] {
            let problem = mount(text).unwrap_err().to_string();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
