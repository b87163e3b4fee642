//! Which stages a build needs.

use super::BuildError;
use crate::dockerfile::{Dockerfile, Instruction, MountKind, Step};

/// A stage before this one, by name or number.
pub(super) fn earlier(file: &Dockerfile, name: &str, before: usize) -> Result<Option<usize>, BuildError> {
    if let Ok(number) = name.parse::<usize>() {
        return if number < before { Ok(Some(number)) } else { Err(BuildError::NoStage(name.to_owned())) };
    }
    let lower = name.to_ascii_lowercase();
    let found = file.stages.iter().position(|stage| stage.name.as_ref() == Some(&lower));
    match found {
        // FROM may use the name of an image that a later stage has, but COPY never means itself.
        Some(number) if number < before => Ok(Some(number)),
        Some(number) if number == before => Err(BuildError::Later(before)),
        _ => Ok(None),
    }
}

/// The stage to build.
pub(super) fn target(file: &Dockerfile, target: Option<&str>) -> Result<usize, BuildError> {
    match target {
        None => Ok(file.stages.len() - 1),
        Some(name) => {
            earlier(file, name, file.stages.len())?.ok_or_else(|| BuildError::NoStage(name.to_owned()))
        }
    }
}

/// All that the target needs, in order. `bases` are the images of FROM, filled in.
pub(super) fn needed(file: &Dockerfile, target: usize, bases: &[String]) -> Result<Vec<usize>, BuildError> {
    let mut needed = vec![false; target + 1];
    needed[target] = true;
    for number in (0..=target).rev() {
        if !needed[number] {
            continue;
        }
        if let Some(base) = base_stage(file, &bases[number], number) {
            needed[base] = true;
        }
        for step in &file.stages[number].steps {
            for from in sources(step) {
                if let Some(source) = earlier(file, from, number)? {
                    needed[source] = true;
                }
            }
        }
    }
    Ok((0..=target).filter(|number| needed[*number]).collect())
}

/// The stage a FROM starts from; a number is an image there.
pub(super) fn base_stage(file: &Dockerfile, image: &str, number: usize) -> Option<usize> {
    let lower = image.to_ascii_lowercase();
    file.stages[..number].iter().position(|stage| stage.name.as_ref() == Some(&lower))
}

fn sources(step: &Step) -> Vec<&str> {
    match &step.instruction {
        Instruction::Copy(transfer) => transfer.from.iter().map(String::as_str).collect(),
        Instruction::Run(run) => {
            let from = run.mounts.iter().filter_map(|mount| match &mount.kind {
                MountKind::Bind { from, .. } | MountKind::Cache { from, .. } => from.as_deref(),
                MountKind::Tmpfs { .. } | MountKind::Secret { .. } => None,
            });
            from.collect()
        }
        _ => Vec::new(),
    }
}
