//! What is in the store, as people ask for it: found, named, listed, removed, written out.

use std::io::Write;
use std::path::Path;

use belljar_image::digest::Digest;
use belljar_image::export;
use belljar_image::import::Imported;
use belljar_image::reference::{Name, Reference};
use belljar_image::store::{Depth, Evict, Freed, Mend, Ownership, Report, StoredImage, Usage};
use serde::Serialize;

use super::{Images, fault};
use crate::fault::{Code, Fault};
use crate::moment::Moment;

/// The fewest digits of a digest that are taken for one without `sha256:` before them.
const DIGITS: usize = 8;

/// An image of the store, in short.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The digest of its configuration, which names it.
    pub config_digest: Digest,
    /// What it is called.
    pub names: Vec<String>,
    /// `name@sha256:…`, where it can be fetched again.
    pub repo_digests: Vec<String>,
    /// How many layers it has.
    pub layers: usize,
    /// What its files take on the disk, shared with other images or not.
    pub disk_bytes: u64,
    /// For which machine.
    pub platform: String,
    /// Whose its files are.
    pub ownership: Ownership,
    /// Where it came from last.
    pub from: String,
    /// When it was made, by its own word.
    pub created: Option<String>,
    /// When it was added or used last.
    pub last_used: Option<Moment>,
}

/// An image that was brought in, and the name it has now.
#[derive(Debug, Clone, Serialize)]
pub struct Brought {
    /// The image.
    #[serde(flatten)]
    pub image: Summary,
    /// What it is called where it came from.
    pub called: Vec<String>,
}

/// What a removal did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// The names that are gone.
    pub names: Vec<String>,
    /// The images that are gone, by the digests of their configurations.
    pub images: Vec<Digest>,
    /// Layers that no image needed any more.
    pub layers: usize,
    /// The room that this gave back.
    pub freed_bytes: u64,
}

impl Taken {
    /// The same from what the store says.
    pub fn of(freed: Freed) -> Taken {
        Taken {
            names: Vec::new(),
            layers: freed.layers.len(),
            freed_bytes: freed.bytes,
            images: freed.images,
        }
    }
}

impl Summary {
    /// An image in short.
    pub fn of(image: &StoredImage) -> Summary {
        let platform = belljar_image::oci::Platform {
            architecture: image.config.architecture.clone(),
            os: image.config.os.clone(),
            variant: image.config.variant.clone(),
        };
        let used = jiff::Timestamp::try_from(image.last_used).ok();
        Summary {
            config_digest: image.config_digest,
            names: image.names.clone(),
            repo_digests: image.repo_digests.clone(),
            layers: image.diff_ids.len(),
            disk_bytes: image.disk,
            platform: platform.to_string(),
            ownership: image.ownership,
            from: image.origin.from.clone(),
            created: image.config.created.clone(),
            last_used: used.map(Moment::from_timestamp),
        }
    }
}

impl Images {
    /// An image that is in the store, as a person calls it: a name, a digest, or the beginning of one.
    pub fn find(&self, text: &str) -> Result<StoredImage, Fault> {
        let reference: Reference = text.parse().map_err(fault::syntax)?;
        let found = match &reference {
            Reference::Registry(name) => self.known(name)?,
            Reference::Stored(prefix) => self.store()?.image(&prefix.to_string()).map_err(fault::store)?,
            _ => None,
        };
        if let Some(image) = found {
            return Ok(image);
        }
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() >= DIGITS && text.bytes().all(hex) {
            return self.kept(text);
        }
        Err(fault::absent(&reference.to_string()))
    }

    /// Gives an image a name, by which it is found from then on.
    pub fn tag(&self, image: Digest, name: &Name) -> Result<(), Fault> {
        if name.digest().is_some() {
            return Err(Fault::new(Code::Usage, format!("an image cannot be given the name {name}"))
                .hint("leave out the digest: it follows from what is in the image"));
        }
        self.store()?.name(image, &name.to_string()).map_err(fault::store)
    }

    /// Gives what was imported a name, and tells of it.
    pub fn named_import(&self, imported: &Imported, name: Option<&Name>) -> Result<Brought, Fault> {
        let image = imported.image.config_digest;
        if let Some(name) = name {
            self.tag(image, name)?;
        }
        let image = Summary::of(&self.kept(&image.to_string())?);
        Ok(Brought { image, called: imported.names.clone() })
    }

    /// Every image in the store, those that were used last first.
    pub fn list(&self) -> Result<Vec<Summary>, Fault> {
        let mut all = self.store()?.list().map_err(fault::store)?;
        all.sort_by_key(|image| (std::cmp::Reverse(image.last_used), image.config_digest));
        Ok(all.iter().map(Summary::of).collect())
    }

    /// Removes an image; one that was named by one of several names loses that name only.
    pub fn remove(&self, text: &str) -> Result<Taken, Fault> {
        let image = self.find(text)?;
        let store = self.store()?;
        let name = match text.parse() {
            Ok(Reference::Registry(name)) => Some(name.to_string()).filter(|name| image.names.contains(name)),
            _ => None,
        };
        if let Some(name) = name.filter(|_| image.names.len() > 1) {
            store.untag(&name).map_err(fault::store)?;
            return Ok(Taken { names: vec![name], ..Taken::default() });
        }
        let removed = store.remove(image.config_digest).map_err(fault::store)?;
        let freed = Taken::of(removed.freed);
        Ok(Taken { names: removed.names, images: vec![image.config_digest], ..freed })
    }

    /// Writes images as one archive, which is both an OCI layout and a docker archive.
    pub fn export(&self, images: &[StoredImage], out: &mut impl Write) -> Result<(), Fault> {
        export::export_archive(&*self.store()?, images, out).map_err(fault::export)
    }

    /// Writes images as an OCI layout into a new folder.
    pub fn export_layout(&self, images: &[StoredImage], folder: &Path) -> Result<(), Fault> {
        export::export_layout(&*self.store()?, images, folder).map_err(fault::export)
    }

    /// What the store takes on the disk.
    pub fn usage(&self) -> Result<Usage, Fault> {
        self.store()?.disk_usage().map_err(fault::store)
    }

    /// Removes what no image needs; with a budget, also images until the store takes no more than that.
    pub fn prune(&self, budget: Option<u64>, which: Evict) -> Result<Taken, Fault> {
        let store = self.store()?;
        let mut freed = Taken::of(store.prune().map_err(fault::store)?);
        if let Some(budget) = budget {
            let more = Taken::of(store.evict_to(budget, which).map_err(fault::store)?);
            freed.images.extend(more.images);
            freed.layers += more.layers;
            freed.freed_bytes += more.freed_bytes;
        }
        Ok(freed)
    }

    /// Checks everything in the store, and mends it if that is asked for.
    pub fn check(&self, depth: Depth, mend: Mend) -> Result<Report, Fault> {
        self.store()?.fsck(depth, mend).map_err(fault::store)
    }

    /// Removes what killed processes left half-made; says how many things, and how many bytes.
    pub fn sweep(&self) -> Result<(u64, u64), Fault> {
        let freed = self.store()?.sweep().map_err(fault::store)?;
        Ok((freed.scraps, freed.bytes))
    }

    /// Whether there is a store at all; to ask does not make one.
    pub fn has_store(&self) -> bool {
        self.settings.store.join("format").exists()
    }
}
