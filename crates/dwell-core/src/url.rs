//! Transport URLs: the address of a broker and its options.
//!
//! `Debug`, `Display` and errors never contain a password. An error about a URL that cannot be
//! parsed therefore quotes no part of it.

mod options;
mod percent;

pub use options::Options;

use crate::{Error, ErrorKind, Result, Secret, quote::quote, suggest};
use std::{fmt, net::Ipv6Addr, str::FromStr};

/// Schemes whose URL contains a file path between `://` and `?`.
const FILE_SCHEMES: [&str; 1] = ["sqlite"];

/// Parts of option names whose values are never printed.
const SECRET_NAMES: [&str; 8] = ["pass", "pwd", "secret", "token", "key", "sas", "sig", "credential"];

/// The address of a broker: `scheme://user:password@host:port,host:port/path?option=value&…`, or
/// `sqlite://path`.
///
/// User, password, path and options are percent-decoded; a `+` stays a `+`. In a password, `/`, `?`
/// and `#` must be percent-encoded. After the hosts, `@` must be percent-encoded. Otherwise the end
/// of the password would be ambiguous.
///
/// ```
/// use dwell_core::TransportUrl;
///
/// let url = TransportUrl::parse("redis://app:hunter2@[::1]:6379/0?lease=30s")?;
/// assert_eq!(url.scheme(), "redis");
/// assert_eq!(url.hosts(), [("::1".to_owned(), Some(6379))]);
/// assert_eq!(url.path(), "/0");
/// assert_eq!(url.to_string(), "redis://app:***@[::1]:6379/0?lease=30s");
/// # Ok::<(), dwell_core::Error>(())
/// ```
#[derive(Clone)]
pub struct TransportUrl {
    text: Secret,
    scheme: String,
    username: Option<String>,
    password: Option<Secret>,
    hosts: Vec<(String, Option<u16>)>,
    path: String,
    options: Vec<(String, String)>,
}

impl TransportUrl {
    /// Parses a URL. Does not check whether a transport exists for the scheme, nor the meaning of
    /// the path and the options.
    pub fn parse(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            let example = "write it like `redis://localhost:6379`, `sqlite://dwell.db` or `memory://`";
            Error::new(ErrorKind::Config, format!("`://` is missing in the transport URL: {example}"))
        })?;
        if !is_scheme(scheme) {
            let rule = "a letter, then letters, digits, `+`, `-` and `.`, as in `redis://localhost:6379`";
            return Err(Error::new(
                ErrorKind::Config,
                format!("the scheme of a transport URL, before `://`, must be {rule}"),
            ));
        }
        let scheme = scheme.to_ascii_lowercase();
        let refused =
            |problem: String| Error::new(ErrorKind::Config, format!("the {scheme}:// URL {problem}"));

        // Checks first for characters that could make a part of the password look like something
        // else.
        if text.contains(char::is_control) {
            return Err(refused(
                "contains a control character, perhaps a line break at its end; remove it".to_owned(),
            ));
        }
        if rest.contains('#') {
            return Err(refused("contains a `#`; write it `%23`".to_owned()));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = if FILE_SCHEMES.contains(&scheme.as_str()) {
            ("", place)
        } else {
            let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
            if path.contains('@') || query.contains('@') {
                return Err(refused(
                    "contains an `@` after its hosts; there, write it `%40`; \
                     in a password, write `/` as `%2F`, `?` as `%3F` and `@` as `%40`"
                        .to_owned(),
                ));
            }
            (authority, path)
        };

        let decode = |text: &str, what: &str| {
            percent::decode(text).ok_or_else(|| {
                refused(format!(
                    "has a `%` in its {what} that does not start a character of UTF-8, as in `%2F`; \
                     write `%` itself as `%25`"
                ))
            })
        };
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (username, password) =
            user.split_once(':').map_or((user, None), |(name, password)| (name, Some(password)));
        Ok(Self {
            username: (!username.is_empty()).then(|| decode(username, "user name")).transpose()?,
            password: password.map(|text| decode(text, "password")).transpose()?.map(Secret::new),
            hosts: parse_hosts(hosts).map_err(|problem| refused(problem.to_owned()))?,
            path: decode(path, "path")?,
            options: parse_options(query, decode, refused)?,
            text: Secret::new(text),
            scheme,
        })
    }

    /// Returns the part before `://`, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the user name, if there is one. Some brokers expect a token in its place, so
    /// `Display` hides a user name without a password.
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    /// Returns the password, if there is one.
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }

    /// Returns the hosts, each with its port if given. IPv6 addresses have no brackets. Empty for
    /// `sqlite://`.
    pub fn hosts(&self) -> &[(String, Option<u16>)] {
        &self.hosts
    }

    /// Returns the part from the first `/` after the hosts to the `?`, including that `/`: `/0` for
    /// `redis://localhost/0`. Empty if there is no `/`. For `sqlite://`, it starts directly after
    /// `://`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns a reader for the options.
    pub fn options(&self) -> Options<'_> {
        Options::new(self)
    }

    /// Returns the URL as given, including the password, for a client library.
    pub fn expose(&self) -> &str {
        self.text.expose()
    }

    /// Returns the error for a URL whose scheme is not in `known`.
    pub fn unknown_scheme_error(&self, known: &[&str]) -> Error {
        let meant = match suggest(&self.scheme, known.iter().copied()) {
            Some(name) => format!("did you mean `{name}://`? "),
            None => String::new(),
        };
        let known: Vec<_> = known.iter().map(|name| format!("{name}://")).collect();
        let known = known.join(", ");
        Error::new(
            ErrorKind::Config,
            format!("there is no transport for `{}://`; {meant}known schemes: {known}", self.scheme),
        )
    }
}

impl FromStr for TransportUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

/// Writes the URL with `***` in place of the password and of every option that may be secret.
impl fmt::Display for TransportUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        match (&self.username, &self.password) {
            (Some(name), Some(password)) => write!(f, "{}:{password}@", percent::encode(name, ""))?,
            (None, Some(password)) => write!(f, ":{password}@")?,
            (Some(_), None) => write!(f, "{}@", Secret::MASK)?,
            (None, None) => {}
        }
        for (index, (host, port)) in self.hosts.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            if host.contains(':') {
                write!(f, "[{host}]")?
            } else {
                f.write_str(host)?
            }
            port.iter().try_for_each(|port| write!(f, ":{port}"))?;
        }
        f.write_str(&percent::encode(&self.path, "/:+,="))?;
        for (index, (name, value)) in self.options.iter().enumerate() {
            f.write_str(if index == 0 { "?" } else { "&" })?;
            let value = if is_secret(name) { Secret::MASK.into() } else { percent::encode(value, "/:+,") };
            write!(f, "{}={value}", percent::encode(name, ""))?;
        }
        Ok(())
    }
}

impl fmt::Debug for TransportUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransportUrl({self})")
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn is_secret(option: &str) -> bool {
    let option = option.to_lowercase();
    SECRET_NAMES.iter().any(|name| option.contains(name))
}

fn parse_hosts(text: &str) -> Result<Vec<(String, Option<u16>)>, &'static str> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(parse_host).collect()
}

/// The errors quote no part of the text: in a URL without a host, it is the password.
fn parse_host(text: &str) -> Result<(String, Option<u16>), &'static str> {
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let (address, after) =
            bracketed.split_once(']').ok_or("has a `[` without a `]`; write it like `[::1]:6379`")?;
        if address.parse::<Ipv6Addr>().is_err() {
            return Err("has something other than an IPv6 address in `[…]`");
        }
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':').ok_or("has a `]` followed by something other than `:port`")?),
        };
        (address, port)
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        if port.is_some_and(|port| port.contains(':')) {
            return Err("has a host with several `:`; write an IPv6 address in brackets, like `[::1]:6379`");
        }
        if host.is_empty() {
            return Err("has an empty host; write it like `localhost:6379`, several with `,` between them");
        }
        if !host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
            return Err("has a character in a host that is not a letter, a digit, `-`, `.` or `_`");
        }
        (host, port)
    };
    let port = port
        .map(|port| match port.parse::<u16>() {
            Ok(number) if number > 0 && !port.starts_with('+') => Ok(number),
            _ => Err("has a port that is not a number from 1 to 65535; \
                      if it is a password, the host is missing: `user:password@host`"),
        })
        .transpose()?;
    Ok((host.to_owned(), port))
}

fn parse_options(
    query: &str,
    decode: impl Fn(&str, &str) -> Result<String>,
    refused: impl Fn(String) -> Error,
) -> Result<Vec<(String, String)>> {
    let mut options: Vec<(String, String)> = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        // An option without a `=` may be the rest of a secret that contains a `&`, so it is not
        // quoted.
        let (name, value) = option.split_once('=').ok_or_else(|| {
            refused(
                "has an option without a value; write `name=value`, and a `&` in a value as `%26`".to_owned(),
            )
        })?;
        let name = decode(name, "option names")?;
        if name.is_empty() {
            return Err(refused("has an option without a name; write `name=value`".to_owned()));
        }
        if options.iter().any(|(known, _)| *known == name) {
            return Err(refused(format!("has the option {} more than once; keep one of them", quote(&name))));
        }
        options.push((name, decode(value, "option values")?));
    }
    Ok(options)
}

#[cfg(test)]
mod tests;
