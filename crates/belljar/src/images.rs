//! Images for people: whatever a reference means becomes a root that a sandbox is made of.

mod bootstrap;
mod fault;
mod local;
mod remote;
mod shelf;
mod watch;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_cell::cell::Guest;
use belljar_cell::lobby::Lobby;
use belljar_image::digest::Digest;
use belljar_image::oci::{Platform, Settings};
use belljar_image::reference::{Found, Image, Reference, StoredRoot};
use belljar_image::registry;
use belljar_image::store::{Lease, Owners, Store, StoreError, StoredImage};

pub use self::bootstrap::{Bootstrap, Variant};
pub use self::shelf::{Brought, Summary, Taken};
pub use self::watch::{Told, Watch};
use crate::fault::{Code, Fault};

/// Everything that is decided about images before the first one is asked for.
#[derive(Clone)]
pub struct ImageSettings {
    /// The folder of the store; made when it is first needed.
    pub store: PathBuf,
    /// What happens to owners that the caller cannot give to files; with subordinate ids there are none such.
    pub owners: Owners,
    /// For which machine.
    pub platform: Platform,
    /// How registries are spoken to.
    pub registry: registry::Settings,
    /// How many bytes the store may take after something was added.
    pub budget: Option<u64>,
    /// All that Docker, Podman and mmdebstrap get as their environment; `PATH` is where they are looked for.
    pub programs: Vec<(OsString, OsString)>,
    /// Who builds an image from a Dockerfile.
    pub build: Option<Builder>,
    /// Who makes an image of a snapshot.
    pub snapshot: Option<SnapshotMaker>,
}

/// Builds an image from a context and a Dockerfile into the store; gives the digest of its configuration.
pub type Builder =
    Arc<dyn Fn(&Images, &Store, Context<'_>, Watch<'_>) -> Result<Digest, Fault> + Send + Sync>;

/// Makes an image of the snapshot of this name in the store; gives the digest of its configuration.
pub type SnapshotMaker = Arc<dyn Fn(&Images, &Store, &str, Watch<'_>) -> Result<Digest, Fault> + Send + Sync>;

/// What is to be built.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The folder that instructions copy from.
    pub folder: &'a Path,
    /// The Dockerfile.
    pub dockerfile: &'a Path,
}

/// When a registry is asked for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pull {
    /// When the store has none of that name.
    #[default]
    Missing,
    /// Each time, also when the store has one: the name may mean another image now.
    Always,
    /// Never.
    Never,
}

/// The images of one user on this machine. What it found stays in the store for as long as this value lives.
pub struct Images {
    /// What was decided.
    pub settings: ImageSettings,
    store: Mutex<Option<Arc<Store>>>,
    held: Mutex<Vec<(Digest, Lease)>>,
}

impl ImageSettings {
    /// A store in this folder, with nothing special about it: root's files keep their owners, an ordinary user's
    /// images may hold nobody's but root's.
    pub fn new(store: PathBuf) -> ImageSettings {
        let root = rustix::process::geteuid().is_root();
        ImageSettings {
            store,
            owners: if root { Owners::Exact } else { Owners::Refuse },
            platform: Platform::here(),
            registry: registry::Settings::default(),
            budget: None,
            programs: Vec::new(),
            build: None,
            snapshot: None,
        }
    }
}

impl fmt::Debug for ImageSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageSettings")
            .field("store", &self.store)
            .field("owners", &self.owners)
            .field("platform", &self.platform)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Images").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Images {
    /// Touches nothing; the store is opened when it is first needed.
    pub fn new(settings: ImageSettings) -> Images {
        Images { settings, store: Mutex::default(), held: Mutex::default() }
    }

    /// The store, opened.
    pub fn store(&self) -> Result<Arc<Store>, Fault> {
        let mut opened = lock(&self.store);
        if let Some(store) = &*opened {
            return Ok(Arc::clone(store));
        }
        let store = self.open().map_err(fault::store)?;
        Ok(Arc::clone(opened.insert(Arc::new(store))))
    }

    /// An ordinary user with subordinate ids keeps owners as root does, so nothing is refused or squashed.
    fn open(&self) -> Result<Store, StoreError> {
        let ImageSettings { store, owners, .. } = &self.settings;
        match Lobby::make() {
            Ok(lobby) if *owners != Owners::Exact => {
                Ok(Store::open(store, Owners::Exact)?.for_guest(lobby, guest()))
            }
            _ => Store::open(store, *owners),
        }
    }

    /// The root that a reference means, fetched, imported or built where that is needed. A relative path starts at
    /// `folder`.
    pub fn resolve(
        &self,
        reference: &Reference,
        folder: &Path,
        pull: Pull,
        watch: Watch<'_>,
    ) -> Result<Image, Fault> {
        let found = reference.find(folder).map_err(fault::reference)?;
        self.bring(reference, &found, pull, watch)
    }

    /// The same for a reference whose paths were looked at.
    pub fn bring(
        &self,
        reference: &Reference,
        found: &Found,
        pull: Pull,
        watch: Watch<'_>,
    ) -> Result<Image, Fault> {
        let stored = match found {
            Found::Host => return Ok(Image::Host),
            Found::Directory(path) => return Ok(Image::Directory(path.clone())),
            Found::Registry(name) => self.named(name, pull, watch),
            Found::RootTar(path) => self.file(path, None, watch),
            Found::OciLayout { path, tag, .. } => self.file(path, tag.as_deref(), watch),
            Found::DockerArchive { path, name } => self.file(path, name.as_deref(), watch),
            Found::Daemon { daemon, name } => self.saved(*daemon, name, watch),
            Found::Build { context, dockerfile } => self.built(context, dockerfile, watch),
            Found::Stored(prefix) => self.kept(&prefix.to_string()),
            Found::Snapshot(name) => self.snapshot(name, watch),
        };
        let stored = stored.map_err(|fault| watch.unless_cancelled(fault))?;
        self.root(&stored, reference.to_string())
    }

    /// An image of the store as a root, held from now on.
    pub fn root(&self, image: &StoredImage, reference: String) -> Result<Image, Fault> {
        let store = self.store()?;
        self.hold(&store, image.config_digest)?;
        store.touch(image.config_digest).map_err(fault::store)?;
        Ok(Image::Stored(Box::new(StoredRoot {
            reference,
            config_digest: image.config_digest,
            diff_ids: image.diff_ids.clone(),
            layers: image.layers.clone(),
            lock: store.lock_path(image.config_digest),
            settings: image.config.config.clone(),
        })))
    }

    fn hold(&self, store: &Store, image: Digest) -> Result<(), Fault> {
        let mut held = lock(&self.held);
        if held.iter().all(|(known, _)| *known != image) {
            held.push((image, store.hold(image, &|_| {}).map_err(fault::store)?));
        }
        Ok(())
    }

    fn built(&self, folder: &Path, dockerfile: &Path, watch: Watch<'_>) -> Result<StoredImage, Fault> {
        let Some(build) = &self.settings.build else {
            let message =
                format!("{} would have to be built, which this version cannot", dockerfile.display());
            return Err(Fault::new(Code::ImageUnknown, message)
                .hint("build it with another program, and write docker:NAME or podman:NAME"));
        };
        let store = self.store()?;
        let image = build(self, &store, Context { folder, dockerfile }, watch)?;
        self.kept(&image.to_string())
    }

    fn snapshot(&self, name: &str, watch: Watch<'_>) -> Result<StoredImage, Fault> {
        let Some(make) = &self.settings.snapshot else {
            let message = format!("the snapshot {name} cannot be used as an image by this version");
            return Err(Fault::new(Code::ImageUnknown, message)
                .hint(format!("belljar sandbox create --from {name} starts with its files")));
        };
        let store = self.store()?;
        let image = make(self, &store, name, watch)?;
        self.kept(&image.to_string())
    }

    /// An image that must be in the store, by its digest, a beginning of it, or a name as it is stored.
    fn kept(&self, reference: &str) -> Result<StoredImage, Fault> {
        let found = self.store()?.image(reference).map_err(fault::store)?;
        found.ok_or_else(|| fault::absent(reference))
    }
}

/// Whom every sandbox is made for.
fn guest() -> Guest {
    Guest { uid: 1000, gid: 1000, name: "runner".to_owned(), home: PathBuf::from("/home/runner") }
}

/// What a person wrote as an image.
pub fn understood(text: &str) -> Result<Reference, Fault> {
    text.parse().map_err(fault::syntax)
}

/// A panic elsewhere leaves what is behind this lock as good as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The variables of an image that its commands get. Who it says they are is left out: the guest is another.
pub(crate) fn environment(settings: &Settings) -> impl Iterator<Item = (String, String)> {
    let pairs = settings.env.iter().filter_map(|pair| pair.split_once('='));
    let usable = |(name, value): &(&str, &str)| {
        !name.is_empty() && !OWN.contains(name) && !name.contains('\0') && !value.contains('\0')
    };
    pairs.filter(usable).map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// What says who somebody is and where they live; that is the sandbox's to say.
const OWN: [&str; 4] = ["HOME", "LOGNAME", "USER", "PWD"];
