//! Values of options, in fio's notation. An error names the option and what to write.

use super::source::excerpt;
use crate::document::ReadWrite;
use crate::fio::units::{self, Base};

/// A size of a job: some bytes, or a share of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSize {
    Bytes(u64),
    /// Percent of the file or device.
    Percent(u64),
}

/// An option with its value, for messages.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub name: &'a str,
    pub value: Option<&'a str>,
}

impl<'a> Given<'a> {
    pub fn text(self) -> Result<&'a str, String> {
        let name = self.name;
        self.value.ok_or_else(|| format!("{name} has no value; write {name}=..."))
    }

    /// Returns an error that names the option, its value and what to write.
    pub fn wrong(self, what: &str) -> String {
        format!("{}={}: {what}", self.name, excerpt(self.value.unwrap_or_default()))
    }

    pub fn number(self) -> Result<u32, String> {
        self.text()?.parse().map_err(|_| self.wrong("write a number"))
    }

    pub fn flag(self) -> Result<bool, String> {
        match self.value {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(_) => Err(self.wrong("write 0 or 1")),
        }
    }

    pub fn percent(self) -> Result<u8, String> {
        let number = self.text()?.parse().ok().filter(|number| *number <= 100);
        number.ok_or_else(|| self.wrong("write percent from 0 to 100"))
    }

    /// Parses a time; a number without a unit is in units of `unit_ns`.
    pub fn time(self, unit_ns: u64) -> Result<u64, String> {
        let text = self.text()?;
        let plain = text.parse::<u64>().ok().map(|number| number.checked_mul(unit_ns));
        let time = plain.unwrap_or_else(|| units::nanoseconds(text));
        time.ok_or_else(|| self.wrong("invalid time; write 10, 500ms or 2m"))
    }

    pub fn bytes(self, base: Base) -> Result<u64, String> {
        let wrong = || self.wrong("not supported; write one size, such as 4k");
        units::bytes(self.text()?, base).ok_or_else(wrong)
    }

    pub fn file_size(self, base: Base) -> Result<FileSize, String> {
        let Some(percent) = self.text()?.strip_suffix('%') else {
            return self.bytes(base).map(FileSize::Bytes);
        };
        let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
        percent.map(FileSize::Percent).ok_or_else(|| self.wrong("write percent from 1 to 100"))
    }

    pub fn read_write(self) -> Result<ReadWrite, String> {
        let text = self.text()?;
        let known = ReadWrite::ALL.into_iter().find(|known| known.name() == text);
        let alias = (text == "readwrite").then_some(ReadWrite::Rw);
        let what = "not supported; write read, write, randread, randwrite, rw or randrw";
        known.or(alias).ok_or_else(|| self.wrong(what))
    }

    pub fn durability(self) -> Result<String, String> {
        match self.text()? {
            "none" | "0" => Ok("none".to_owned()),
            "sync" | "1" => Ok("sync".to_owned()),
            "dsync" => Ok("dsync".to_owned()),
            _ => Err(self.wrong("write none, dsync or sync")),
        }
    }

    /// Returns the one path in the value, without fio's escapes.
    pub fn path(self) -> Result<String, String> {
        let mut path = String::new();
        let mut escaped = false;
        for character in self.text()?.chars() {
            match character {
                '\\' if !escaped => escaped = true,
                ':' if !escaped => {
                    return Err(self
                        .wrong("several files are not supported; give each a job with stonewall"));
                }
                '\0' => return Err(self.wrong("a path has no NUL; remove it")),
                other => {
                    if escaped && other != ':' {
                        path.push('\\');
                    }
                    path.push(other);
                    escaped = false;
                }
            }
        }
        if escaped || path.is_empty() {
            return Err(self.wrong("write a path"));
        }
        if path.starts_with("rados:") {
            let what = "a job file names no object of a cluster; name it on the command line";
            return Err(self.wrong(what));
        }
        Ok(path)
    }
}
