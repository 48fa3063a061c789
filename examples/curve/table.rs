//! The table, in Markdown. Losses are in bold: cells that failed, and cells in which this crate's join
//! took longer than a peer with the same limit.

use std::fmt::Write;

use crate::cell::Record;

/// The table of all cells.
pub(crate) fn of(records: &[Record]) -> String {
    let mut text = String::from(
        "| workload | engine | limit | seconds | pool peak | process peak | spilled | files |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for record in records {
        let cell = &record.cell;
        let seconds = match record.seconds() {
            Some(seconds) if is_loss(record, seconds, records) => format!("**{seconds:.2}**"),
            Some(seconds) => format!("{seconds:.2}"),
            None => "**fails**".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {seconds} | {} | {} | {} | {} |",
            cell.workload.name(),
            cell.engine,
            cell.limit(),
            megabytes(record.most(|run| run.pool_peak)),
            megabytes(record.most(|run| run.process_peak)),
            megabytes(record.most(|run| run.spilled)),
            record
                .most(|run| run.files)
                .map_or_else(|| "-".to_owned(), |files| files.to_string()),
        );
    }
    let failed = records.iter().filter_map(|r| Some((r, r.error()?)));
    for (record, error) in failed {
        let _ = writeln!(text, "\n{}: {error}", record.cell);
    }
    text
}

/// Whether another engine was faster at the same, with the same limit.
fn is_loss(record: &Record, seconds: f64, records: &[Record]) -> bool {
    let same = |other: &&Record| {
        (other.cell.workload, other.cell.limit) == (record.cell.workload, record.cell.limit)
    };
    let mut others = records.iter().filter(same).filter_map(Record::seconds);
    record.cell.engine == "grace" && others.any(|other| other < seconds)
}

fn megabytes(bytes: Option<u64>) -> String {
    match bytes {
        None => "-".to_owned(),
        Some(bytes) => {
            let tenths = (bytes * 10) >> 20;
            format!("{}.{} MB", tenths / 10, tenths % 10)
        }
    }
}
