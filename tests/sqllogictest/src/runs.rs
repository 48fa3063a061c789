//! The runs: how the session of each differs from the one that the test files expect.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::SessionContext;
use grace_hash_join::{GraceHashJoinOptions, SpillableJoinSelection, physical_optimizer_rules};

/// Where the rule stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: DataFusion alone.
    Nowhere,
    /// Right after join selection, where `physical_optimizer_rules` puts it.
    AfterSelection,
    /// After everything else.
    Appended,
}

/// One way to run all test files.
pub struct Run {
    pub name: &'static str,
    pub about: &'static str,
    pub place: Place,
    /// Whether joins are replaced at all.
    pub replaces: bool,
    /// Whether joins are partitioned, however small.
    pub partitioned: bool,
    /// Whether every join spills all that it has.
    pub spills: bool,
    /// Whether the sort-merge spill tests must make joins of ours spill.
    pub must_spill: bool,
    /// What becomes of the files' own wish for sort-merge joins.
    pub merge: Merge,
}

/// How a session comes by sort-merge joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Where the test file says so.
    AsWritten,
    /// Never: `SET datafusion.optimizer.prefer_hash_join` is swallowed.
    Never,
    /// Wherever the planner can, and the file has no say in it.
    Always,
}

const BASE: Run = Run {
    name: "",
    about: "",
    place: Place::AfterSelection,
    replaces: true,
    partitioned: false,
    spills: false,
    must_spill: false,
    merge: Merge::AsWritten,
};

/// All runs, in their order.
pub const ALL: &[Run] = &[
    Run {
        name: "datafusion",
        about: "DataFusion alone: what fails here is not ours",
        place: Place::Nowhere,
        replaces: false,
        ..BASE
    },
    Run {
        name: "as-written",
        about: "the files as they are; small joins are CollectLeft with one partition a side",
        ..BASE
    },
    Run {
        name: "partitioned",
        about: "no join is too small to be partitioned",
        partitioned: true,
        ..BASE
    },
    Run {
        name: "as-written-spilled",
        about: "as-written, with every bucket on disk from the first row on",
        spills: true,
        must_spill: true,
        ..BASE
    },
    Run {
        name: "partitioned-spilled",
        about: "partitioned, with every bucket on disk from the first row on",
        partitioned: true,
        spills: true,
        must_spill: true,
        ..BASE
    },
    Run {
        name: "hash-preferred",
        about: "the files' SET prefer_hash_join is swallowed: their sort-merge joins become ours",
        merge: Merge::Never,
        ..BASE
    },
    Run {
        name: "merge-preferred",
        about: "DataFusion plans sort-merge joins wherever it can, and the rule takes them over",
        merge: Merge::Always,
        ..BASE
    },
    Run {
        name: "appended",
        about: "partitioned, with the rule appended after DataFusion's own",
        place: Place::Appended,
        partitioned: true,
        ..BASE
    },
];

/// The runs of these names, or all.
pub fn chosen(names: &[String]) -> crate::Result<Vec<&'static Run>> {
    if names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    let find = |name: &String| {
        let found = ALL.iter().find(|run| run.name == *name);
        found.ok_or_else(|| format!("no such run: {name}; --list shows them").into())
    };
    names.iter().map(find).collect()
}

impl Run {
    /// Changes a session that DataFusion's runner set up into this run's.
    pub fn configure(&self, ctx: &SessionContext) -> Result<()> {
        let state = ctx.state_ref();
        let mut state = state.write();
        let id = state.session_id().to_string();
        let mut rules = match self.place {
            Place::AfterSelection => physical_optimizer_rules(state.runtime_env()),
            Place::Nowhere | Place::Appended => PhysicalOptimizer::new().rules,
        };
        if self.place == Place::Appended {
            let rule = SpillableJoinSelection::for_runtime(state.runtime_env());
            rules.push(Arc::new(rule));
        }
        let mut builder = SessionStateBuilder::new_from_existing(state.clone())
            .with_session_id(id)
            .with_physical_optimizer_rules(rules);
        if let Some(config) = builder.config() {
            self.set_options(config.options_mut())?;
        }
        *state = builder.build();
        Ok(())
    }

    fn set_options(&self, options: &mut ConfigOptions) -> Result<()> {
        let spill = if self.spills { "all" } else { "pressure" };
        let ours = GraceHashJoinOptions::default()
            .with("algorithm", "grace")?
            .with("select", "always")?
            .with("spill", spill)?;
        options.extensions.insert(ours);
        // A file of these tests limits the memory, and then DataFusion's exchange may hang.
        options.set("datafusion.execution.max_spill_file_size_bytes", "1")?;
        if self.partitioned {
            options.optimizer.hash_join_single_partition_threshold = 0;
            options.optimizer.hash_join_single_partition_threshold_rows = 0;
        }
        if self.merge == Merge::Always {
            options.optimizer.prefer_hash_join = false;
        }
        Ok(())
    }

    /// What is run in the place of a statement; `None` if nothing is.
    pub fn instead<'a>(&self, sql: &'a str) -> Option<Cow<'a, str>> {
        let setting = sql.trim_start().to_ascii_lowercase();
        let sets = |key| setting.starts_with("set ") && setting.contains(key);
        if self.merge == Merge::AsWritten {
            return Some(Cow::Borrowed(sql));
        }
        if sets("datafusion.optimizer.prefer_hash_join") {
            return None;
        }
        // A sort-merge join of sorted inputs runs with 64 KiB. A join that has to spill its build
        // side does not: it needs 384 KiB for each of two partitions, and the batch in hand.
        if sets("datafusion.runtime.memory_limit") && setting.contains("'64k'") {
            return Some(Cow::Owned(sql.replace("64K", "1M")));
        }
        Some(Cow::Borrowed(sql))
    }

    /// Whether the plans that the files expect are this run's as well, but for the nodes of ours.
    pub fn has_the_expected_plans(&self) -> bool {
        !self.partitioned && self.merge == Merge::AsWritten
    }
}
