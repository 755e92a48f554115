//! Conditions of routes.

use weir_config::quoted;

use super::expression::literal;

/// What a request must be, all of it: the conditions of a route, or of one entry of its `not` or `any`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTest {
    /// Paths, one of them.
    pub path: Vec<String>,
    /// Hosts, one of them.
    pub host: Vec<String>,
    /// Methods, one of them.
    pub method: Vec<String>,
    /// Networks of clients, one of them.
    pub client_ip: Vec<String>,
    /// Names and values of header fields, of parameters, of cookies and of maps: `(table, name, value)`.
    pub values: Vec<(&'static str, String, String)>,
}

impl RequestTest {
    /// A path.
    pub fn path(path: impl Into<String>) -> RequestTest {
        RequestTest { path: vec![path.into()], ..RequestTest::default() }
    }

    /// A value in one of the tables `header`, `query`, `cookie` or `map`.
    pub fn value(table: &'static str, name: impl Into<String>, value: impl Into<String>) -> RequestTest {
        RequestTest { values: vec![(table, name.into(), value.into())], ..RequestTest::default() }
    }

    /// Adds another test, if no key would stand twice.
    fn with(&self, other: &RequestTest) -> Option<RequestTest> {
        let both = |a: &[String], b: &[String]| match (a, b) {
            (a, []) => Some(a.to_vec()),
            ([], b) => Some(b.to_vec()),
            (a, b) if a == b => Some(a.to_vec()),
            _ => None,
        };
        let mut values = self.values.clone();
        for value in &other.values {
            match values.iter().find(|own| own.0 == value.0 && own.1.eq_ignore_ascii_case(&value.1)) {
                Some(own) if own == value => {}
                Some(_) => return None,
                None => values.push(value.clone()),
            }
        }
        Some(RequestTest {
            path: both(&self.path, &other.path)?,
            host: both(&self.host, &other.host)?,
            method: both(&self.method, &other.method)?,
            client_ip: both(&self.client_ip, &other.client_ip)?,
            values,
        })
    }

    /// Its keys, each with its value as TOML.
    fn keys(&self) -> Vec<(&'static str, String)> {
        let lists = [
            ("host", &self.host),
            ("path", &self.path),
            ("method", &self.method),
            ("client_ip", &self.client_ip),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let mut keys: Vec<(&str, String)> =
            lists.map(|(key, list)| (key, crate::write::texts(list))).collect();
        for table in ["header", "query", "cookie", "map"] {
            let of_table = self.values.iter().filter(|(of, ..)| *of == table);
            let pairs: Vec<String> =
                of_table.map(|(_, name, value)| format!("{} = {}", toml_key(name), quoted(value))).collect();
            if !pairs.is_empty() {
                keys.push((table, format!("{{ {} }}", pairs.join(", "))));
            }
        }
        keys
    }

    fn inline(&self) -> String {
        let keys: Vec<String> =
            self.keys().into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
        format!("{{ {} }}", keys.join(", "))
    }
}

/// A key of a TOML table, in quotes where it needs them.
pub fn toml_key(name: &str) -> String {
    let is_bare =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if is_bare { name.to_owned() } else { quoted(name) }
}

/// A text that a value must be exactly, as Weir writes it in conditions.
pub fn exactly(text: &str) -> String {
    let is_pattern = text.starts_with(['~', '!', '*']) || text.ends_with('*') || text.is_empty();
    if is_pattern { format!("~^{}$", literal(text)) } else { text.to_owned() }
}

/// The conditions of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTest {
    must: RequestTest,
    not: Vec<RequestTest>,
    any: Vec<RequestTest>,
}

impl RouteTest {
    /// A route for these hosts; all if there are none.
    pub fn of_hosts(hosts: &[String]) -> RouteTest {
        let must = RequestTest { host: hosts.to_vec(), ..RequestTest::default() };
        RouteTest { must, ..RouteTest::default() }
    }

    /// The same, and this must hold. `None` if a route cannot ask for both.
    pub fn and(&self, test: &RequestTest) -> Option<RouteTest> {
        if let Some(must) = self.must.with(test) {
            return Some(RouteTest { must, ..self.clone() });
        }
        match self.any.as_slice() {
            [] => Some(RouteTest { any: vec![test.clone()], ..self.clone() }),
            [only] => {
                let both = only.with(test)?;
                Some(RouteTest { any: vec![both], ..self.clone() })
            }
            _ => None,
        }
    }

    /// The same with a path whose groups the route may use: it takes the place of the path that stands there,
    /// which is asked for besides.
    pub fn and_path_first(&self, path: &str) -> Option<RouteTest> {
        let own = RequestTest { path: self.must.path.clone(), ..RequestTest::default() };
        let must = RequestTest { path: vec![path.to_owned()], ..self.must.clone() };
        let moved = RouteTest { must, ..self.clone() };
        match own.path.is_empty() || own.path == [path.to_owned()] {
            true => Some(moved),
            false => moved.and(&own),
        }
    }

    /// The same, and this must not hold.
    pub fn and_not(&self, test: &RequestTest) -> RouteTest {
        let mut not = self.not.clone();
        if !not.contains(test) {
            not.push(test.clone());
        }
        RouteTest { not, ..self.clone() }
    }

    /// Its keys in a route, each with its value as TOML.
    pub fn keys(&self) -> Vec<(&'static str, String)> {
        let mut keys = self.must.keys();
        let tables = |tests: &[RequestTest]| match tests {
            [one] => one.inline(),
            more => format!("[{}]", more.iter().map(RequestTest::inline).collect::<Vec<_>>().join(", ")),
        };
        if !self.not.is_empty() {
            keys.push(("not", tables(&self.not)));
        }
        if !self.any.is_empty() {
            keys.push(("any", tables(&self.any)));
        }
        keys
    }

    /// The conditions on hosts alone.
    pub fn only_hosts(&self) -> RouteTest {
        RouteTest::of_hosts(&self.must.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_condition_of_a_kind_stands_in_any() {
        let route = RouteTest::of_hosts(&["a".to_owned()]);
        let route = route.and(&RequestTest::path("/a/*")).unwrap();
        let route = route.and(&RequestTest::value("header", "x", "1")).unwrap();
        let route = route.and(&RequestTest::value("header", "x", "*2")).unwrap();
        let route = route.and_not(&RequestTest::path("/a/b"));
        let text: Vec<String> =
            route.keys().into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
        assert_eq!(
            text,
            [
                "host = \"a\"",
                "path = \"/a/*\"",
                "header = { x = \"1\" }",
                "not = { path = \"/a/b\" }",
                "any = { header = { x = \"*2\" } }"
            ]
        );
        assert!(route.and(&RequestTest::value("header", "x", "3")).is_none());
        let first = route.and_path_first("~^/a/(.*)").unwrap();
        assert_eq!(first.must.path, ["~^/a/(.*)"]);
    }
}
