//! The command line of `belljar build`.

use std::path::PathBuf;
use std::str::FromStr;

use belljar_image::lint::{Rule, Severity};
use clap::Args;

use super::{Isolation, Network, Share};
use crate::typed::{Assignment, Period};

/// Arguments of `build`.
#[derive(Debug, Args)]
pub(crate) struct BuildArguments {
    /// The folder that instructions copy from
    #[arg(default_value = ".")]
    pub(crate) context: PathBuf,
    /// The Dockerfile [default: Dockerfile or Containerfile in CONTEXT]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// A name for the image, as NAME or NAME:TAG; may be given more than once
    #[arg(short, long, value_name = "NAME")]
    pub(crate) tag: Vec<String>,
    /// Build this stage, by name or number, instead of the last one
    #[arg(long, value_name = "STAGE")]
    pub(crate) target: Option<String>,
    /// A value for an ARG; may be given more than once
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) build_arg: Vec<Assignment>,
    /// A file for steps that mount it: id=ID,src=FILE; may be given more than once
    #[arg(long, value_name = "SECRET")]
    pub(crate) secret: Vec<SecretFile>,
    /// What steps can reach that do not say --network=none
    #[arg(long, value_name = "NETWORK", default_value = "none")]
    pub(crate) network: Network,
    /// Use no earlier results
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Build twice without earlier results, and compare
    #[arg(long, conflicts_with = "no_cache")]
    pub(crate) verify: bool,
    /// Only look the Dockerfile over, and build nothing
    #[arg(long, conflicts_with_all = ["verify", "tag"])]
    pub(crate) check: bool,
    /// How bad a rule is: BJ005=error, BJ005=warning, BJ005=off; may be given more than once
    #[arg(long, value_name = "RULE=SEVERITY")]
    pub(crate) policy: Vec<PolicyChange>,
    /// How long one step may take: 90s, 30m
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Period>,
    #[command(flatten)]
    pub(crate) share: Share,
    /// What happens when a limit cannot be enforced
    #[arg(long, value_name = "ISOLATION", default_value = "full")]
    pub(crate) isolation: Isolation,
    /// As an ordinary user: keep files of other users in layers, as the caller's own
    #[arg(long)]
    pub(crate) squash: bool,
}

/// A secret as typed: `id=ID,src=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretFile {
    pub(crate) id: String,
    pub(crate) source: PathBuf,
}

impl FromStr for SecretFile {
    type Err = String;

    fn from_str(text: &str) -> Result<SecretFile, String> {
        let (mut id, mut source) = (None, None);
        for field in text.split(',') {
            match field.split_once('=') {
                Some(("id", value)) if !value.is_empty() => id = Some(value.to_owned()),
                Some(("src" | "source", value)) if !value.is_empty() => source = Some(PathBuf::from(value)),
                Some(("type", "file")) => {}
                _ => return Err(format!("{field:?} is neither id=ID nor src=FILE")),
            }
        }
        let id = id.ok_or_else(|| format!("{text:?} has no id=ID"))?;
        let source = source.ok_or_else(|| format!("{text:?} has no src=FILE"))?;
        Ok(SecretFile { id, source })
    }
}

/// A change to the policy as typed: `BJ005=warning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyChange {
    pub(crate) rule: Rule,
    /// Not looked for when there is none.
    pub(crate) severity: Option<Severity>,
}

impl FromStr for PolicyChange {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyChange, String> {
        let (rule, severity) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not RULE=SEVERITY"))?;
        let rule =
            Rule::from_id(rule).ok_or_else(|| format!("{rule:?} is not a rule; they are BJ001 to BJ010"))?;
        let severity = match severity {
            "error" => Some(Severity::Error),
            "warning" => Some(Severity::Warning),
            "off" => None,
            other => return Err(format!("{other:?} is neither error, warning nor off")),
        };
        Ok(PolicyChange { rule, severity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_an_id_and_a_file() {
        let secret: SecretFile = "id=a,src=/x".parse().unwrap();
        assert_eq!((secret.id.as_str(), secret.source), ("a", PathBuf::from("/x")));
        for wrong in ["", "id=a", "src=/x", "id=,src=/x", "id=a,src=/x,env=B", "a"] {
            assert!(wrong.parse::<SecretFile>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_policy_names_a_rule_and_how_bad_it_is() {
        let change: PolicyChange = "BJ005=off".parse().unwrap();
        assert_eq!((change.rule, change.severity), (Rule::Latest, None));
        for wrong in ["BJ005", "BJ999=off", "BJ005=fatal", "="] {
            assert!(wrong.parse::<PolicyChange>().is_err(), "{wrong}");
        }
    }
}
