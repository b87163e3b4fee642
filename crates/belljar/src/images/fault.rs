//! What can go wrong with images, as a person meets it.

use std::io;

use belljar_image::export::ExportError;
use belljar_image::import::ImportError;
use belljar_image::reference::{ReferenceError, SyntaxError};
use belljar_image::registry::RegistryError;
use belljar_image::store::{PullError, StoreError};

use crate::fault::{Code, Fault};

fn told(code: Code, error: impl std::error::Error) -> Fault {
    Fault::new(code, error.to_string()).hint(code.remedy())
}

/// A text that is no reference.
pub(super) fn syntax(error: SyntaxError) -> Fault {
    told(Code::ImageUnknown, error)
}

/// A reference that leads nowhere.
pub(super) fn reference(error: ReferenceError) -> Fault {
    told(Code::ImageUnknown, error)
}

/// An image that is not in the store.
pub(super) fn absent(reference: &str) -> Fault {
    Fault::new(Code::ImageAbsent, format!("the image {reference} is not in the store"))
        .hint(Code::ImageAbsent.remedy())
}

/// A failure of the store.
pub(super) fn store(error: StoreError) -> Fault {
    let code = match &error {
        StoreError::System { source, .. } if source.kind() == io::ErrorKind::StorageFull => Code::DiskFull,
        StoreError::WrongContent { .. }
        | StoreError::TooLong { .. }
        | StoreError::WrongLayer { .. }
        | StoreError::BadDocument { .. }
        | StoreError::Damaged { .. }
        | StoreError::NoLayer(_) => Code::ImageCorrupt,
        StoreError::Unpack(_) => Code::ImageRefused,
        StoreError::ForeignOwner { .. } | StoreError::OtherOwners(_) => Code::ImageForeignOwners,
        StoreError::InUse { .. } => Code::ImageInUse,
        StoreError::Ambiguous { .. } => Code::ImageUnknown,
        StoreError::NoImage(_) => Code::ImageAbsent,
        StoreError::BadName { .. } => Code::Usage,
        // A kind of failure that is new is at least a failure of the store.
        _ => Code::ImageStore,
    };
    told(code, error)
}

/// A failure of a pull.
pub(super) fn pull(error: PullError) -> Fault {
    match error {
        PullError::Store(error) => store(error),
        PullError::Registry(error) => registry(error),
        other => told(Code::ImageStore, other),
    }
}

/// A failure with a registry.
pub(super) fn registry(error: RegistryError) -> Fault {
    let code = match &error {
        RegistryError::Cancelled => Code::Interrupted,
        RegistryError::Unreachable { .. }
        | RegistryError::Stalled { .. }
        | RegistryError::Tls { .. }
        | RegistryError::PlainHttp { .. }
        | RegistryError::WantsHttps { .. } => Code::RegistryUnreachable,
        RegistryError::WrongCredentials { .. }
        | RegistryError::NoCredentials { .. }
        | RegistryError::Denied { .. }
        | RegistryError::Credentials(_) => Code::RegistryDenied,
        RegistryError::NotFound { .. } => Code::ImageUnknown,
        RegistryError::RateLimited { .. } => Code::RegistryBusy,
        RegistryError::WrongDigest { .. } | RegistryError::WrongSize { .. } => Code::ImageCorrupt,
        RegistryError::NoPlatform { .. } => Code::ImagePlatform,
        RegistryError::OldManifest { .. }
        | RegistryError::ForeignLayer { .. }
        | RegistryError::NotAnImage { .. } => Code::ImageRefused,
        RegistryError::Authorities { .. }
        | RegistryError::Proxy
        | RegistryError::Mirror { .. }
        | RegistryError::NotPushable { .. } => Code::Usage,
        RegistryError::Answered { .. }
        | RegistryError::Malformed { .. }
        | RegistryError::TooLarge { .. }
        | RegistryError::Redirect { .. } => Code::RegistryFailed,
        RegistryError::Destination { .. } | RegistryError::Source { .. } => Code::ImageStore,
    };
    told(code, error)
}

/// A failure of an import.
pub(super) fn import(error: ImportError) -> Fault {
    let code = match error {
        ImportError::Store(error) => return store(error),
        ImportError::Read { .. } | ImportError::NoSuch { .. } | ImportError::Several { .. } => {
            Code::ImageUnknown
        }
        ImportError::Document { .. } | ImportError::Missing(_) => Code::ImageCorrupt,
        _ => Code::ImageStore,
    };
    told(code, error)
}

/// A failure of an export.
pub(super) fn export(error: ExportError) -> Fault {
    let code = match error {
        ExportError::Store(error) => return store(error),
        ExportError::Write { ref source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            Code::DiskFull
        }
        ExportError::Write { .. } | ExportError::NotEmpty(_) => Code::OutputUnwritable,
        ExportError::NotTheSame { .. } => Code::ImageAbsent,
        ExportError::Damaged(_) => Code::ImageCorrupt,
        _ => Code::ImageStore,
    };
    told(code, error)
}

/// A program that cannot be started.
pub(super) fn program(program: &str, package: &str, error: io::Error) -> Fault {
    if error.kind() != io::ErrorKind::NotFound {
        return Fault::new(Code::ProgramMissing, format!("could not start {program}")).caused_by(error);
    }
    Fault::new(Code::ProgramMissing, format!("there is no program `{program}` in the folders of PATH"))
        .hint(format!("install it; on Debian: apt-get install {package}"))
}
