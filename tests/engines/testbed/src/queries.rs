//! Queries over the TPC-H tables, each with the joins or the order that it is about.

/// A query, and how its answer is compared.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Its text.
    pub sql: &'static str,
    /// Whether it says the order of its rows, to the last.
    pub is_ordered: bool,
}

const fn any_order(sql: &'static str) -> Query {
    Query {
        sql,
        is_ordered: false,
    }
}

const fn ordered(sql: &'static str) -> Query {
    Query {
        sql,
        is_ordered: true,
    }
}

/// Each join type that SQL can ask for, with the small table first, and second.
pub const JOINS: [Query; 14] = [
    any_order("SELECT c_custkey, o_orderkey FROM customer JOIN orders ON c_custkey = o_custkey"),
    any_order(
        "SELECT c_custkey, o_orderkey FROM customer LEFT JOIN orders ON c_custkey = o_custkey \
         AND o_totalprice > 100000",
    ),
    any_order(
        "SELECT c_custkey, o_orderkey FROM customer RIGHT JOIN orders ON c_custkey = o_custkey \
         AND c_acctbal > 0",
    ),
    any_order(
        "SELECT c_custkey, o_orderkey FROM customer FULL JOIN orders ON c_custkey = o_custkey \
         AND c_acctbal > 0 AND o_totalprice > 100000",
    ),
    any_order(
        "SELECT c_custkey FROM customer WHERE EXISTS \
         (SELECT 1 FROM orders WHERE c_custkey = o_custkey)",
    ),
    any_order(
        "SELECT o_orderkey FROM orders WHERE EXISTS \
         (SELECT 1 FROM customer WHERE c_custkey = o_custkey AND c_acctbal > 0)",
    ),
    any_order(
        "SELECT c_custkey FROM customer WHERE NOT EXISTS \
         (SELECT 1 FROM orders WHERE c_custkey = o_custkey)",
    ),
    any_order(
        "SELECT o_orderkey FROM orders WHERE NOT EXISTS \
         (SELECT 1 FROM customer WHERE c_custkey = o_custkey AND c_acctbal > 0)",
    ),
    any_order(
        "SELECT c_custkey FROM customer WHERE c_acctbal > 9000 OR EXISTS \
         (SELECT 1 FROM orders WHERE c_custkey = o_custkey AND o_totalprice > 200000)",
    ),
    any_order(
        "SELECT o_orderkey FROM orders WHERE o_totalprice > 300000 OR EXISTS \
         (SELECT 1 FROM customer WHERE c_custkey = o_custkey AND c_acctbal > 5000)",
    ),
    // Keys that are equal if both are NULL.
    any_order(
        "SELECT c_custkey, o_orderkey FROM customer JOIN orders \
         ON nullif(c_custkey, 4) IS NOT DISTINCT FROM nullif(o_custkey, 7)",
    ),
    // NOT IN: without NULLs; with some on both sides; with one among the values. Where a NULL leaves
    // nothing, that is counted, so that there is a row.
    any_order(
        "SELECT c_custkey FROM customer WHERE c_custkey NOT IN (SELECT o_custkey FROM orders)",
    ),
    any_order(
        "SELECT count(*) FROM customer WHERE nullif(c_custkey, 3) NOT IN \
         (SELECT nullif(o_custkey, 4) FROM orders)",
    ),
    any_order(
        "SELECT count(*) FROM orders WHERE o_custkey NOT IN \
         (SELECT nullif(c_custkey, 5) FROM customer WHERE c_acctbal > 0)",
    ),
];

/// The modes and types of joins that both engines make of [`JOINS`] with their build sides broadcast.
pub const BROADCAST: [&str; 5] = [
    "CollectLeft Inner",
    "CollectLeft Right",
    "CollectLeft RightSemi",
    "CollectLeft RightAnti",
    "CollectLeft RightMark",
];

/// And those of joins that put out build rows by themselves, which they partition.
pub const NEVER_BROADCAST: [&str; 4] = [
    "Partitioned Left",
    "Partitioned Full",
    "Partitioned LeftSemi",
    "Partitioned LeftAnti",
];

/// Queries whose rows have one order and no other, through or above a join: by a sort of their own,
/// or, over sorted files, by the order of the join's probe side.
///
/// A join over an input that was sorted and cut is not among them: `datafusion-distributed` 4.0 cuts in
/// each task and gets too many rows, and Ballista 55's adaptive planner sometimes gets none, whoever
/// joins.
pub const ORDERED: [Query; 12] = [
    // A limit over a sort.
    ordered(
        "SELECT o_orderkey, c_name FROM customer JOIN orders ON c_custkey = o_custkey \
         ORDER BY o_totalprice DESC, o_orderkey LIMIT 50",
    ),
    // All rows, in the order of the probe side; a part of them.
    ordered(
        "SELECT o_orderkey, c_name FROM customer JOIN orders ON c_custkey = o_custkey \
         ORDER BY o_orderkey",
    ),
    ordered(
        "SELECT o_orderkey, c_name FROM customer JOIN orders ON c_custkey = o_custkey \
         ORDER BY o_orderkey LIMIT 40 OFFSET 1000",
    ),
    ordered(
        "SELECT o_orderkey, c_name FROM customer RIGHT JOIN orders ON c_custkey = o_custkey \
         AND c_acctbal > 5000 ORDER BY o_orderkey DESC LIMIT 3000",
    ),
    ordered(
        "SELECT o_orderkey FROM orders WHERE EXISTS \
         (SELECT 1 FROM customer WHERE c_custkey = o_custkey AND c_acctbal > 0) \
         ORDER BY o_orderkey",
    ),
    ordered(
        "SELECT o_orderkey FROM orders WHERE NOT EXISTS \
         (SELECT 1 FROM customer WHERE c_custkey = o_custkey AND c_acctbal > 0) \
         ORDER BY o_orderkey LIMIT 500",
    ),
    // NULLs of an outer join first.
    ordered(
        "SELECT c_custkey, o_orderkey FROM customer LEFT JOIN orders ON c_custkey = o_custkey \
         AND o_totalprice > 100000 ORDER BY o_orderkey NULLS FIRST, c_custkey",
    ),
    // Windows with an order, over all rows and over each group's.
    ordered(
        "SELECT o_orderkey, row_number() OVER (ORDER BY o_orderkey) AS n, sum(o_totalprice) OVER \
         (ORDER BY o_orderkey ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS s FROM customer \
         JOIN orders ON c_custkey = o_custkey ORDER BY o_orderkey",
    ),
    ordered(
        "SELECT c_custkey, o_orderkey, lag(o_orderkey) OVER \
         (PARTITION BY c_custkey ORDER BY o_orderdate, o_orderkey) AS before FROM customer \
         JOIN orders ON c_custkey = o_custkey ORDER BY c_custkey, o_orderkey",
    ),
    // Groups that come one after the other, and aggregates that depend on an order.
    ordered(
        "SELECT l_orderkey, count(*), array_agg(l_linenumber ORDER BY l_linenumber), \
         first_value(p_name ORDER BY l_linenumber) FROM part JOIN lineitem ON p_partkey = l_partkey \
         GROUP BY l_orderkey ORDER BY l_orderkey",
    ),
    // Through two joins; of which the upper one may be a merge of sorted inputs.
    ordered(
        "SELECT l_orderkey, l_linenumber, c_name FROM customer JOIN orders ON c_custkey = o_custkey \
         JOIN lineitem ON o_orderkey = l_orderkey ORDER BY l_orderkey, l_linenumber",
    ),
    ordered(
        "SELECT l_orderkey, l_linenumber, p_name FROM part JOIN lineitem ON p_partkey = l_partkey \
         LEFT JOIN orders ON l_orderkey = o_orderkey AND o_totalprice > 100000 \
         ORDER BY l_orderkey, l_linenumber LIMIT 20000",
    ),
];

/// Two sorted streams merged, of which one has the order of a join's probe side. (Ballista 55 puts the
/// branches of this union into stages that do not keep their order, whoever joins.)
pub const UNION: Query = ordered(
    "SELECT k, n FROM (SELECT o_orderkey AS k, c_name AS n FROM customer JOIN orders \
     ON c_custkey = o_custkey UNION ALL SELECT -l_orderkey * 8 - l_linenumber AS k, p_name AS n \
     FROM part JOIN lineitem ON p_partkey = l_partkey) ORDER BY k",
);
