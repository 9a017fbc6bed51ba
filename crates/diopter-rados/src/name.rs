//! Names of striped objects on a command line: `rados:[CONF!]POOL[@NAMESPACE]/NAME`. No cluster is
//! asked; a local file of the same name is an error.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::error::{Error, shown};

/// The start of such a name.
const PREFIX: &[u8] = b"rados:";

/// The parts of a name. CONF ends at the first `!`, NAME is everything after the first `/` behind
/// that, and `%XX` is the byte with these two hexadecimal digits in every part. `Display` writes a
/// name that parses to the same parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The configuration of the cluster, if not the default one.
    pub conf: Option<PathBuf>,
    /// The pool.
    pub pool: Vec<u8>,
    /// The namespace in the pool, if not the default one.
    pub namespace: Option<Vec<u8>>,
    /// The striped object.
    pub name: Vec<u8>,
}

impl Name {
    /// Parses a name; `None` if it does not start with `rados:`.
    ///
    /// # Errors
    /// Fails if a part is missing or empty, or an escape is not one; and if a local file has the
    /// name, which a pattern of the shell finds: its owner does not decide which configuration is
    /// read.
    pub fn parse(text: &OsStr) -> Option<Result<Name, Error>> {
        let rest = text.as_bytes().strip_prefix(PREFIX)?;
        if is_local(text) {
            let name = shown(text.as_bytes());
            let error = Error::invalid(format!("{name}: a local file has this name"));
            return Some(Err(error.advise("write ./rados:... for the file, or rename it")));
        }
        Some(parts(rest).map_err(|why| {
            let name = shown(text.as_bytes());
            Error::invalid(format!("{name}: {why}"))
                .advise("write rados:[CONF!]POOL[@NAMESPACE]/NAME")
        }))
    }
}

/// Returns true if a local file may have a name.
fn is_local(text: &OsStr) -> bool {
    let found = std::path::Path::new(text).symlink_metadata();
    !found.is_err_and(|error| error.raw_os_error().is_none_or(has_none))
}

/// Returns true for an error of a name that leads to no file. EACCES: the working directory is one
/// that this user cannot search, where no file is opened by such a name.
fn has_none(errno: i32) -> bool {
    let none = [libc::ENOENT, libc::ENOTDIR, libc::ENAMETOOLONG, libc::EINVAL, libc::EACCES];
    // EINVAL is also that of the standard library, for a zero byte.
    none.contains(&errno)
}

fn parts(text: &[u8]) -> Result<Name, &'static str> {
    let (conf, rest) = match split(text, b'!') {
        Some((conf, rest)) => (Some(conf), rest),
        None => (None, text),
    };
    let (place, name) = split(rest, b'/').ok_or(match conf {
        Some(_) => "no `/` after the first `!`; `!` in a NAME is %21 if there is no CONF",
        None => "no `/` after the pool",
    })?;
    let (pool, namespace) = match split(place, b'@') {
        Some((pool, namespace)) => (pool, Some(namespace)),
        None => (place, None),
    };
    let conf = conf.map(|conf| plain(conf, "the configuration is empty")).transpose()?;
    Ok(Name {
        conf: conf.map(|conf| PathBuf::from(OsString::from_vec(conf))),
        pool: plain(pool, "the pool is empty")?,
        namespace: namespace.map(|part| plain(part, "the namespace is empty")).transpose()?,
        name: plain(name, "the name of the object is empty")?,
    })
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = text.iter().position(|byte| *byte == at)?;
    Some((&text[..index], &text[index + 1..]))
}

/// Replaces the escapes of a part.
fn plain(part: &[u8], why_empty: &'static str) -> Result<Vec<u8>, &'static str> {
    let mut plain = Vec::with_capacity(part.len());
    let mut bytes = part.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match byte {
            b'%' => escaped(bytes.next(), bytes.next())
                .ok_or("`%` without two hexadecimal digits; a `%` is %25")?,
            byte => byte,
        });
    }
    if plain.contains(&0) {
        return Err("a zero byte");
    }
    if plain.is_empty() {
        return Err(why_empty);
    }
    Ok(plain)
}

fn escaped(high: Option<&u8>, low: Option<&u8>) -> Option<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Writes a part: bytes that would end it, or that a terminal would not show, are escaped.
fn write_part(to: &mut fmt::Formatter<'_>, part: &[u8], ends: &[u8]) -> fmt::Result {
    for &byte in part {
        if byte.is_ascii_graphic() && !ends.contains(&byte) && byte != b'%' {
            to.write_char(char::from(byte))?;
        } else {
            write!(to, "%{byte:02X}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("rados:")?;
        if let Some(conf) = &self.conf {
            write_part(to, conf.as_os_str().as_bytes(), b"!")?;
            to.write_char('!')?;
        }
        write_part(to, &self.pool, b"!@/")?;
        if let Some(namespace) = &self.namespace {
            to.write_char('@')?;
            write_part(to, namespace, b"!/")?;
        }
        to.write_char('/')?;
        write_part(to, &self.name, b"!")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Name {
        Name::parse(OsStr::new(text)).expect("the prefix").expect(text)
    }

    fn name(conf: Option<&str>, pool: &str, namespace: Option<&str>, name: &str) -> Name {
        Name {
            conf: conf.map(PathBuf::from),
            pool: pool.into(),
            namespace: namespace.map(Into::into),
            name: name.into(),
        }
    }

    #[test]
    fn a_directory_that_cannot_be_searched_has_no_local_file() {
        assert!(has_none(libc::EACCES) && has_none(libc::ENOENT));
        assert!(!has_none(libc::EIO) && !has_none(libc::ELOOP));
    }

    #[test]
    fn names_are_divided_at_the_first_of_each_sign() {
        for (text, expected) in [
            ("rados:data/a", name(None, "data", None, "a")),
            ("rados:data//a/../b", name(None, "data", None, "/a/../b")),
            ("rados:data@n/a@b", name(None, "data", Some("n"), "a@b")),
            ("rados:data@n@m/a", name(None, "data", Some("n@m"), "a")),
            ("rados:/etc/c.conf!data/a!b", name(Some("/etc/c.conf"), "data", None, "a!b")),
            ("rados:data/a%21b%25%2fc", name(None, "data", None, "a!b%/c")),
            ("rados:p%40q%2Fr/x", name(None, "p@q/r", None, "x")),
            ("rados:c%21d!p/x", name(Some("c!d"), "p", None, "x")),
            ("rados:data/rados:data/a", name(None, "data", None, "rados:data/a")),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_such_a_name_is_left_to_others() {
        for text in ["", "rados", "./rados:data/a", "RADOS:data/a", "/rados:data/a"] {
            assert!(Name::parse(OsStr::new(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn a_wrong_name_is_refused_with_the_reason() {
        for (text, why) in [
            ("rados:", "no `/`"),
            ("rados:data", "no `/`"),
            ("rados:data/", "name of the object is empty"),
            ("rados:/a", "pool is empty"),
            ("rados:@n/a", "pool is empty"),
            ("rados:data@/a", "namespace is empty"),
            ("rados:!data/a", "configuration is empty"),
            ("rados:data/a!b", "%21"),
            ("rados:data/a%", "two hexadecimal digits"),
            ("rados:data/a%2", "two hexadecimal digits"),
            ("rados:data/a%+1", "two hexadecimal digits"),
            ("rados:data/a%zz", "two hexadecimal digits"),
            ("rados:data/a%00b", "zero byte"),
        ] {
            let error = Name::parse(OsStr::new(text)).expect("the prefix").expect_err(text);
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }

    fn part() -> impl Strategy<Value = Vec<u8>> {
        let odd = prop::sample::select(b"!@/%.\x1b \xff".to_vec());
        prop::collection::vec(prop_oneof![odd, 1..=255u8], 1..20)
    }

    proptest! {
        #[test]
        fn a_name_that_is_written_parses_to_itself(
            conf in prop::option::of(part()),
            pool in part(),
            namespace in prop::option::of(part()),
            name in part(),
        ) {
            let conf = conf.map(|conf| PathBuf::from(OsString::from_vec(conf)));
            let name = Name { conf, pool, namespace, name };
            let text = name.to_string();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(parse(&text), name);
        }
    }
}
