//! `belljar schema`: the shape of the files that Belljar reads and writes.

use belljar::Fault;
use belljar::event::Event;
use belljar::record::RunRecord;
use belljar::schema::{lock_schema, task_schema};

use crate::args::{SchemaArguments, SchemaOf};
use crate::voice::data;

/// Prints a JSON Schema, which is JSON in either manner.
pub(crate) fn perform(arguments: &SchemaArguments) -> Result<u8, Fault> {
    data(&match arguments.of {
        SchemaOf::Task => task_schema(),
        SchemaOf::RunRecord => format!("{:#}\n", RunRecord::schema()),
        SchemaOf::Event => format!("{:#}\n", Event::schema()),
        SchemaOf::Lock => format!("{:#}\n", lock_schema()),
    })?;
    Ok(0)
}
