//! Images of registries: found in the store, or fetched; and sent there.

use belljar_image::export::Outgoing;
use belljar_image::reference::Name;
use belljar_image::registry::{Client, Pushed};
use belljar_image::store::{Evict, Origin, StoreError, StoredImage};

use super::{Images, Pull, Told, Watch, fault};
use crate::fault::{Code, Fault};

impl Images {
    /// An image by its name in a registry.
    pub(super) fn named(&self, name: &Name, pull: Pull, watch: Watch<'_>) -> Result<StoredImage, Fault> {
        // What a digest means never changes.
        let known = if pull == Pull::Always && name.digest().is_none() { None } else { self.known(name)? };
        match (known, pull) {
            (Some(image), _) => Ok(image),
            (None, Pull::Never) => Err(fault::absent(&name.to_string())),
            (None, Pull::Missing | Pull::Always) => self.pull(name, watch),
        }
    }

    /// An image that the store has under a registry's name; one that is damaged does not count.
    pub fn known(&self, name: &Name) -> Result<Option<StoredImage>, Fault> {
        let store = self.store()?;
        let text = match name.digest() {
            Some(digest) => format!("{}/{}@{digest}", name.registry(), name.repository()),
            None => name.to_string(),
        };
        match store.image(&text) {
            Err(StoreError::Damaged { .. } | StoreError::NoLayer(_)) => Ok(None),
            Ok(None) => match name.digest() {
                Some(digest) => {
                    let mut all = store.list().map_err(fault::store)?.into_iter();
                    Ok(all.find(|image| image.manifest.digest == digest))
                }
                None => Ok(None),
            },
            found => found.map_err(fault::store),
        }
    }

    /// Fetches an image, gives it its name, and keeps the store within its budget.
    pub fn pull(&self, name: &Name, watch: Watch<'_>) -> Result<StoredImage, Fault> {
        let store = self.store()?;
        (watch.tell)(Told::Began(format!("pull {name}")));
        let client = Client::new(self.settings.registry.clone()).map_err(fault::registry)?;
        let notice = |notice| watch.notice(notice);
        let progress = |progress| watch.progress(progress);
        let pulled = store.pull(&client, name, &self.settings.platform, &notice, watch.registry(&progress));
        let image = pulled.map_err(fault::pull)?;
        self.hold(&store, image.config_digest)?;
        if name.digest().is_none() && !image.names.contains(&name.to_string()) {
            store.name(image.config_digest, &name.to_string()).map_err(fault::store)?;
        }
        store.touch(image.config_digest).map_err(fault::store)?;
        self.within_budget()?;
        self.kept(&image.config_digest.to_string())
    }

    /// Evicts what was not used for longest, if the store takes more than it may; what can only be had here stays.
    pub(super) fn within_budget(&self) -> Result<(), Fault> {
        if let Some(budget) = self.settings.budget {
            self.store()?.evict_to(budget, Evict::Fetchable).map_err(fault::store)?;
        }
        Ok(())
    }

    /// Sends an image to a registry, and remembers that it can be had there.
    pub fn push(&self, image: &StoredImage, to: &Name, watch: Watch<'_>) -> Result<Pushed, Fault> {
        let store = self.store()?;
        self.hold(&store, image.config_digest)?;
        (watch.tell)(Told::Began(format!("push {to}")));
        let outgoing = Outgoing::of(&store, image).map_err(fault::export)?;
        let client = Client::new(self.settings.registry.clone()).map_err(fault::registry)?;
        let progress = |progress| watch.progress(progress);
        let pushed = client.push(to, &outgoing.manifest, &outgoing, None, watch.registry(&progress));
        let pushed = pushed.map_err(|error| watch.unless_cancelled(fault::registry(error)))?;
        let repo_digest = Some(format!("{}/{}@{}", to.registry(), to.repository(), pushed.digest));
        let origin = Origin { from: format!("registry {}", to.registry()), repo_digest };
        let config = self.document(image.config_digest)?;
        store.add_image(&outgoing.manifest, &config, &origin, &|_| {}).map_err(fault::store)?;
        Ok(pushed)
    }

    /// A small blob of the store.
    fn document(&self, digest: belljar_image::digest::Digest) -> Result<Vec<u8>, Fault> {
        let damaged = || {
            Fault::new(Code::ImageCorrupt, format!("the document {digest} is damaged"))
                .hint(Code::ImageCorrupt.remedy())
        };
        let file = self.store()?.blob(digest).map_err(fault::store)?.ok_or_else(damaged)?;
        let mut bytes = Vec::new();
        let read = std::io::Read::read_to_end(
            &mut std::io::Read::take(file, belljar_image::store::DOCUMENT_LIMIT),
            &mut bytes,
        );
        match read {
            Ok(_) if belljar_image::digest::Digest::of(&bytes) == digest => Ok(bytes),
            _ => Err(damaged()),
        }
    }
}
