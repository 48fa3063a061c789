//! The 22 TPC-H queries, with the specification's validation parameters.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::Result;

/// The texts, q1 first.
const TEXTS: [&str; 22] = [
    include_str!("queries/q1.sql"),
    include_str!("queries/q2.sql"),
    include_str!("queries/q3.sql"),
    include_str!("queries/q4.sql"),
    include_str!("queries/q5.sql"),
    include_str!("queries/q6.sql"),
    include_str!("queries/q7.sql"),
    include_str!("queries/q8.sql"),
    include_str!("queries/q9.sql"),
    include_str!("queries/q10.sql"),
    include_str!("queries/q11.sql"),
    include_str!("queries/q12.sql"),
    include_str!("queries/q13.sql"),
    include_str!("queries/q14.sql"),
    include_str!("queries/q15.sql"),
    include_str!("queries/q16.sql"),
    include_str!("queries/q17.sql"),
    include_str!("queries/q18.sql"),
    include_str!("queries/q19.sql"),
    include_str!("queries/q20.sql"),
    include_str!("queries/q21.sql"),
    include_str!("queries/q22.sql"),
];

/// The one parameter that depends on the scale: q11's fraction, as it stands in its text.
const Q11_FRACTION: (&str, f64) = ("* 0.0001", 0.0001);

/// A query with the name that reports give it.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// `q18`, or the name of a file.
    pub(crate) name: String,
    /// The text.
    pub(crate) sql: String,
}

/// What `--query` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Queries of TPC-H by number.
    Numbers(Vec<usize>),
    /// One query in a file.
    File(PathBuf),
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::Numbers((1..=TEXTS.len()).collect()));
        }
        if Path::new(text).extension().is_some_and(|ext| ext == "sql") {
            return Ok(Self::File(PathBuf::from(text)));
        }
        let mut numbers = vec![];
        for part in text.split(',') {
            match part.split_once("..") {
                Some((first, last)) => numbers.extend(parse_number(first)?..=parse_number(last)?),
                None => numbers.push(parse_number(part)?),
            }
        }
        Ok(Self::Numbers(numbers))
    }
}

fn parse_number(text: &str) -> Result<usize, String> {
    let digits = text.trim_start_matches(['q', 'Q']);
    match digits.parse() {
        Ok(number) if (1..=TEXTS.len()).contains(&number) => Ok(number),
        _ => Err(format!(
            "'{text}' is neither a number from 1 to {}, nor `all`, nor a .sql file",
            TEXTS.len()
        )),
    }
}

impl Selection {
    /// The selected queries for data of this scale.
    pub(crate) fn load(&self, scale: f64) -> Result<Vec<Query>> {
        match self {
            Self::Numbers(numbers) => Ok(numbers.iter().map(|&n| tpch(n, scale)).collect()),
            Self::File(path) => {
                let sql = std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                let name = path.file_name().unwrap_or(path.as_os_str());
                Ok(vec![Query {
                    name: name.to_string_lossy().into_owned(),
                    sql,
                }])
            }
        }
    }
}

fn tpch(number: usize, scale: f64) -> Query {
    let text = TEXTS[number - 1];
    let sql = if number == 11 {
        let (written, fraction) = Q11_FRACTION;
        text.replace(written, &format!("* {}", fraction / scale))
    } else {
        text.to_owned()
    };
    Query {
        name: format!("q{number}"),
        sql,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_selected_by_number_list_range_all_and_file() {
        let numbers = |text: &str| match text.parse::<Selection>() {
            Ok(Selection::Numbers(numbers)) => numbers,
            _ => vec![],
        };
        assert_eq!(numbers("18"), [18]);
        assert_eq!(numbers("q7,9..11"), [7, 9, 10, 11]);
        assert_eq!(numbers("all").len(), 22);
        assert!(numbers("23").is_empty());
        let file = Selection::File(PathBuf::from("my/own.sql"));
        assert_eq!("my/own.sql".parse(), Ok(file));
    }

    #[test]
    fn the_fraction_of_q11_shrinks_with_the_scale() {
        assert!(tpch(11, 1.0).sql.contains("* 0.0001\n"));
        assert!(tpch(11, 10.0).sql.contains("* 0.00001\n"));
    }
}
