//! Which bytes a run uses when its image is pinned: those that are pinned, where they can be had.

use belljar_image::digest::Digest;
use belljar_image::lock::{Entry, Identity, Locators, Pin, context_hash};
use belljar_image::reference::{Found, Image, Name, Reference};
use belljar_image::store::{StoreError, StoredImage};

use super::{KEY, Locking, Pinned, Pins, Root, Sources};
use crate::fault::{Code, Fault};
use crate::images::{Images, Pull, Watch};

impl Pins<'_> {
    /// Brings the image and holds it against the lock.
    ///
    /// A name that may mean another image by now (in a registry) means the pinned one for as long as that can be had.
    /// What lies here (files, what Docker keeps) is looked at as it is, so that a change is noticed.
    pub fn bring(
        &self,
        reference: &Reference,
        found: &Found,
        sources: Sources<'_>,
        watch: Watch<'_>,
    ) -> Result<Root, Fault> {
        self.refuse_early(found)?;
        // To pin what is there now is to ask what is there now.
        let pull = match (self.locking, sources.pull) {
            (Locking::Update, Pull::Missing) => Pull::Always,
            (_, pull) => pull,
        };
        let sources = Sources { pull, ..sources };
        if let Found::Build { context, dockerfile } = found {
            let hash = context_hash(dockerfile, context)
                .map_err(|error| Fault::new(Code::ImageUnknown, error.to_string()))?;
            return self.built(hash, (reference, found), sources, watch);
        }
        let as_written = |pull| sources.images.bring(reference, found, pull, watch);
        let image = match (found, self.wanted()) {
            (Found::Registry(name), Some(entry)) => match self.pinned_bytes(entry, name, sources, watch)? {
                Some(image) => sources.images.root(&image, reference.to_string())?,
                // Nobody has them under their own name: what the tag means now is the same, or is drift.
                None => as_written(if sources.pull == Pull::Never { Pull::Never } else { Pull::Always })?,
            },
            (Found::Daemon { .. }, Some(entry)) => as_written(sources.pull).or_else(|fault| {
                match kept(sources.images, entry)? {
                    // The program is not needed for what was taken from it before.
                    Some(image) if fault.code != Code::Interrupted => {
                        sources.images.root(&image, reference.to_string())
                    }
                    _ => Err(fault),
                }
            })?,
            _ => as_written(sources.pull)?,
        };
        let locators = locators(sources.images, found, &image)?;
        let pinned = self.settle(&image, locators, watch.cancel)?;
        Ok(Root { image, pinned })
    }

    /// What will be refused anyway is refused before anything is fetched or built.
    fn refuse_early(&self, found: &Found) -> Result<(), Fault> {
        let pinnable = !matches!(found, Found::Host | Found::Directory(_));
        match (self.locking, &self.intent) {
            (Locking::Frozen | Locking::Update, Err(reason)) => self.unportable(reason).map(|_| ()),
            (Locking::Frozen, Ok(_)) if pinnable && self.entry().is_none() => Err(self.not_pinned()),
            _ => Ok(()),
        }
    }

    /// The pinned image of a registry: from the store, else by the digests under which it was found before.
    fn pinned_bytes(
        &self,
        entry: &Entry,
        name: &Name,
        sources: Sources<'_>,
        watch: Watch<'_>,
    ) -> Result<Option<StoredImage>, Fault> {
        if let Some(image) = kept(sources.images, entry)? {
            return Ok(Some(image));
        }
        if sources.pull == Pull::Never {
            return Ok(None);
        }
        for digest in places(entry, name) {
            match sources.images.pull(&name.clone().pinned(digest), watch) {
                Ok(image) if is_pinned(&image, entry) => return Ok(Some(image)),
                // Removed from the registry, or a list that means another image here.
                Ok(_) => {}
                Err(fault) if fault.code == Code::ImageUnknown => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }

    /// An image from a Dockerfile is built when there is none for its context, or when that is asked for.
    fn built(
        &self,
        hash: Digest,
        (reference, found): (&Reference, &Found),
        sources: Sources<'_>,
        watch: Watch<'_>,
    ) -> Result<Root, Fault> {
        let pinned = match self.wanted() {
            Some(entry @ Entry { pin: Pin::Build { context_hash, .. }, .. }) if *context_hash != hash => {
                return Err(self.context_drifted(entry, *context_hash, hash));
            }
            Some(entry) => kept(sources.images, entry)?,
            None => None,
        };
        let image = match pinned {
            Some(image) => sources.images.root(&image, reference.to_string())?,
            None => sources.images.bring(reference, found, sources.pull, watch)?,
        };
        let Image::Stored(root) = &image else {
            return Err(Fault::new(Code::Internal, "a build made something that is no image"));
        };
        let identity = Identity { config_digest: root.config_digest, diff_ids: root.diff_ids.clone() };
        let pinned: Pinned = self.settle_build(hash, identity)?;
        Ok(Root { image, pinned })
    }

    fn context_drifted(&self, entry: &Entry, locked: Digest, now: Digest) -> Fault {
        let built = entry.pin.identity().map(|image| image.config_digest.to_string()).unwrap_or_default();
        let message = format!(
            "the image `{}` would be built from other files than those that {} pins\n  the lock has  the context \
             {locked}, built to {built}\n  there is now  the context {now}",
            self.task.spec.environment.image,
            self.shown()
        );
        self.task.fault_at(KEY, Code::ImageDrift, message)
    }
}

fn is_pinned(image: &StoredImage, entry: &Entry) -> bool {
    entry.pin.identity().is_some_and(|pinned| {
        pinned.config_digest == image.config_digest && pinned.diff_ids == image.diff_ids
    })
}

/// The pinned image in the store; one that is damaged does not count.
fn kept(images: &Images, entry: &Entry) -> Result<Option<StoredImage>, Fault> {
    let Some(pinned) = entry.pin.identity() else { return Ok(None) };
    match images.store()?.image(&pinned.config_digest.to_string()) {
        Ok(found) => Ok(found.filter(|image| is_pinned(image, entry))),
        Err(StoreError::Damaged { .. } | StoreError::NoLayer(_)) => Ok(None),
        Err(error) => Err(Fault::new(Code::ImageStore, error.to_string()).hint(Code::ImageStore.remedy())),
    }
}

/// The digests by which the name's own repository may have the pinned image.
fn places(entry: &Entry, name: &Name) -> Vec<Digest> {
    let own = format!("{}/{}@", name.registry(), name.repository());
    let known = entry.locators.repo_digests.iter().filter_map(|place| place.strip_prefix(&own)?.parse().ok());
    let manifest = entry.locators.manifest_digest;
    let mut digests: Vec<Digest> = known.collect();
    digests.extend(manifest.filter(|digest| !digests.contains(digest)));
    digests
}

/// Where a registry has this image, as the store knows it; of the name's own repository only, because others may be
/// known on this machine by chance.
fn locators(images: &Images, found: &Found, image: &Image) -> Result<Locators, Fault> {
    let (Found::Registry(name), Image::Stored(root)) = (found, image) else { return Ok(Locators::default()) };
    let unknown = |error: StoreError| Fault::new(Code::ImageStore, error.to_string());
    let stored = images.store()?.image(&root.config_digest.to_string()).map_err(unknown)?;
    let own = format!("{}/{}@", name.registry(), name.repository());
    Ok(stored.map_or_else(Locators::default, |image| Locators {
        repo_digests: image.repo_digests.into_iter().filter(|place| place.starts_with(&own)).collect(),
        manifest_digest: Some(image.manifest.digest),
        docker_image_id: None,
    }))
}
