//! The content of the schemas of random programs.

/// Another schema that all of them read. If its name is taken for latin1, it is another schema's name.
pub const NATIONAL: &str = "dr\u{fc}ben";

/// The schema of a place.
pub fn schema_of(place: usize) -> String {
    format!("s{place}")
}

/// Statements that create the schemas of these places and the one that all read; run by root.
pub fn data_of(places: usize) -> Vec<String> {
    let mut all: Vec<String> = [
        "CREATE DATABASE fixed",
        "CREATE TABLE fixed.k (id INT PRIMARY KEY, v VARCHAR(40), n INT)",
        "CREATE TABLE fixed.numbers (id INT PRIMARY KEY)",
        "INSERT INTO fixed.k VALUES (1, 'eins', 10), (2, 'zwei', NULL), (3, 'dr\u{fc}ben', 30), (4, '\u{2603}', 40), \
         (5, '', 50), (6, '6', 60), (7, NULL, 70), (8, 'acht', 80)",
        "CREATE FUNCTION fixed.twice(x INT) RETURNS INT DETERMINISTIC RETURN 2 * x",
        "CREATE FUNCTION fixed.remembers(x INT) RETURNS INT DETERMINISTIC BEGIN SET @f = x; RETURN x; END",
        "CREATE PROCEDURE fixed.results() BEGIN SELECT 1; SELECT id FROM fixed.k ORDER BY id; END",
        "CREATE VIEW fixed.seen AS SELECT id, v FROM fixed.k",
        "CREATE DATABASE `dr\u{fc}ben`",
        "CREATE TABLE `dr\u{fc}ben`.k (id INT PRIMARY KEY)",
        "INSERT INTO `dr\u{fc}ben`.k VALUES (11), (12)",
        "CREATE DATABASE `dr\u{c3}\u{bc}ben`",
        "CREATE TABLE `dr\u{c3}\u{bc}ben`.k (id INT PRIMARY KEY)",
        "INSERT INTO `dr\u{c3}\u{bc}ben`.k VALUES (21)",
        "CREATE FUNCTION fixed.sets(x INT) RETURNS INT DETERMINISTIC \
         BEGIN SET SESSION group_concat_max_len = 50 + x; SET @f = x; RETURN x; END",
        "CREATE VIEW fixed.remembered AS SELECT fixed.remembers(5) AS f",
        "CREATE VIEW fixed.set_so AS SELECT fixed.sets(6) AS f",
        "CREATE ROLE reader",
        "GRANT reader TO app@'%'",
    ]
    .map(str::to_owned)
    .into();
    for place in 0..places {
        let schema = schema_of(place);
        all.push(format!("CREATE DATABASE {schema}"));
        all.push(format!("CREATE TABLE {schema}.began (id INT PRIMARY KEY, n INT)"));
        all.push(format!(
            "CREATE TABLE {schema}.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(40) UNIQUE, n INT)"
        ));
        all.push(format!("CREATE TABLE {schema}.told (id INT PRIMARY KEY)"));
        all.push(format!(
            "CREATE TRIGGER {schema}.tells BEFORE INSERT ON {schema}.told FOR EACH ROW \
             SET NEW.id = fixed.sets(NEW.id)"
        ));
    }
    all
}

/// Statements that reset the data of a place.
pub fn renewal_of(place: usize) -> Vec<String> {
    let schema = schema_of(place);
    ["TRUNCATE s.t", "DROP TABLE IF EXISTS s.x", "DELETE FROM s.began", "TRUNCATE s.told"]
        .map(|sql| sql.replace("s.", &format!("{schema}.")))
        .into()
}
