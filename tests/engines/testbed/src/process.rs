//! A worker as a process of its own, so that it can be killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::{Result, files};

/// The process, killed at the latest when this is dropped.
pub struct Process {
    child: Child,
    /// Where it is told to put its files.
    directory: TempDir,
    /// Where it would put files that nobody told it where to put.
    elsewhere: TempDir,
}

impl Process {
    /// Starts `program` with these arguments, of which `{}` stands for its directory.
    ///
    /// # Errors
    /// If there is no such program.
    pub fn start(program: &str, arguments: &[&str]) -> Result<Self> {
        let (directory, elsewhere) = (TempDir::new()?, TempDir::new()?);
        let path = directory
            .path()
            .to_str()
            .ok_or("a path that is not UTF-8")?;
        let child = Command::new(program)
            .args(arguments.iter().map(|a| a.replace("{}", path)))
            .env("TMPDIR", elsewhere.path())
            .current_dir(elsewhere.path())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self {
            child,
            directory,
            elsewhere,
        })
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// If it prints none.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let stdout = self.child.stdout.take().ok_or("read already")?;
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Ends it, wherever it is.
    ///
    /// # Errors
    /// If it cannot be ended.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The directory that it was given.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The spill files in its directory: a disk manager has them in a folder of its own.
    #[must_use]
    pub fn spill_files(&self) -> Vec<PathBuf> {
        let mut found = files::below(self.directory());
        let is_spill_folder = |part: &Path| {
            let name = part.file_name().and_then(|n| n.to_str());
            name.is_some_and(|n| n.starts_with("datafusion-"))
        };
        found.retain(|file| file.ancestors().any(is_spill_folder));
        found
    }

    /// The files that it has put elsewhere.
    #[must_use]
    pub fn stray_files(&self) -> Vec<PathBuf> {
        files::below(self.elsewhere.path())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.kill();
    }
}
