//! The test files, where the package registry put them, and what they need around them.
//!
//! Paths in them are relative to a checkout of DataFusion, so a directory is made that looks like
//! one: `<root>/datafusion/sqllogictest` holds a copy and becomes the working directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::Result;

/// The crate that publishes the test files.
const PACKAGE: &str = "datafusion-sqllogictest";

/// The test files that are about joins and need nothing that the crate does not publish, but for
/// [`window_2`] and the [`UNPUBLISHED`] records.
pub const FILES: &[&str] = &[
    "dynamic_filter_pushdown_config.slt",
    "eliminate_outer_join.slt",
    "functional_dependencies.slt",
    "imdb.slt",
    "join_disable_repartition_joins.slt",
    "join_is_not_distinct_from.slt",
    "join_limit_pushdown.slt",
    "join_lists.slt",
    "join_only.slt",
    "joins.slt",
    "lateral_join.slt",
    "negative_zero.slt",
    "null_aware_anti_join.slt",
    "preserve_file_partitioning.slt",
    "projection_pushdown.slt",
    "propagate_empty_relation_outer_join.slt",
    "push_down_filter_outer_joins.slt",
    "push_down_filter_parquet.slt",
    "push_down_topk_through_join.slt",
    "pwmj.slt",
    "repartition_subset_satisfaction.slt",
    "same_column_name_cross_join.slt",
    "sort_merge_join.slt",
    "sort_merge_join_spill.slt",
    "statistics_registry.slt",
    "string_numeric_coercion.slt",
    "struct.slt",
    "subquery.slt",
    "union_by_name.slt",
    "unnest.slt",
];

/// Records over rows of files that are not published: they cannot be run.
pub const UNPUBLISHED: &[(&str, u32)] = &[
    ("join_disable_repartition_joins.slt", 64),
    ("join_disable_repartition_joins.slt", 109),
    ("subquery.slt", 369),
];

/// Where `WORKSPACE_ROOT` of the test files is.
static ROOT: OnceLock<String> = OnceLock::new();

/// A copy of the test files, deleted with this value.
pub struct Corpus {
    root: TempDir,
}

impl Corpus {
    /// Copies the test files, and makes the copy the working directory.
    pub fn unpack() -> Result<Self> {
        let source = source()?;
        let root = TempDir::new()?;
        // The paths in plans are canonical.
        let path = root.path().canonicalize()?;
        let home = path.join("datafusion/sqllogictest");
        for part in ["test_files", "data"] {
            copy(&source.join(part), &home.join(part))?;
        }
        let data = path.join("datafusion/core/tests/data");
        fs::create_dir_all(&data)?;
        fs::write(data.join("window_2.csv"), window_2())?;
        std::env::set_current_dir(&home)?;
        // Plans name files without the leading slash.
        let path = path.to_string_lossy();
        ROOT.get_or_init(|| path.trim_start_matches('/').to_string());
        Ok(Self { root })
    }

    /// The names of the files to run.
    pub fn files(&self, filter: Option<&str>, all: bool) -> Result<Vec<String>> {
        let mut names: Vec<String> = if all {
            let directory = self.root.path().join("datafusion/sqllogictest/test_files");
            let mut names = Vec::new();
            for entry in fs::read_dir(directory)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if name.ends_with(".slt") {
                    names.push(name);
                }
            }
            names
        } else {
            FILES.iter().map(ToString::to_string).collect()
        };
        names.retain(|name| filter.is_none_or(|f| name.contains(f)));
        names.sort();
        if names.is_empty() {
            return Err("no such test file; --list shows them".into());
        }
        Ok(names)
    }
}

/// A test file, from the working directory.
pub fn path_of(name: &str) -> PathBuf {
    Path::new("test_files").join(name)
}

/// Paths as the test files have them.
pub fn hide_root(cell: &mut String) {
    if let Some(root) = ROOT.get()
        && cell.contains(root)
    {
        *cell = cell.replace(root, "WORKSPACE_ROOT");
    }
}

/// Where cargo keeps the sources of the crate that this package depends on.
fn source() -> Result<PathBuf> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--manifest-path",
            manifest,
        ])
        .output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("cargo metadata: {why}").into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array();
    let package = packages
        .into_iter()
        .flatten()
        .find(|p| p["name"] == PACKAGE);
    let manifest = package.and_then(|p| p["manifest_path"].as_str());
    let manifest = manifest.ok_or_else(|| format!("cargo metadata does not know {PACKAGE}"))?;
    let directory = Path::new(manifest).parent();
    Ok(directory
        .ok_or("a manifest without a directory")?
        .to_path_buf())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// A table that two files read and the crate does not publish: 100 rows in the order that is
/// declared for it, (a, b, c). Plans over it are compared; the two records that show its rows are
/// among the [`UNPUBLISHED`].
fn window_2() -> String {
    let mut csv = String::from("a0,a,b,c,d\n");
    for row in 0..100 {
        csv.push_str(&format!(
            "1,{},{},{row},{}\n",
            row / 50,
            row / 25,
            row * 7 % 5
        ));
    }
    csv
}
