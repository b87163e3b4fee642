//! The generated documents: the command line and the catalogue of failures, checked against the files.
