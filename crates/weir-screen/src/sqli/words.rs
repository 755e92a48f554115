//! The words of SQL, in the classes that the grammar distinguishes.
//!
//! A word alone never decides anything: it determines what may follow.

/// The role of a word in a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `and`, `or`, `xor`: joins conditions.
    Logic,
    /// `not`.
    Not,
    /// `like`, `regexp` and others: compares two operands.
    Compare,
    /// `is`.
    Is,
    /// `in`.
    In,
    /// `between`.
    Between,
    /// `div`, `mod`, `collate`: joins two operands.
    Arithmetic,
    /// `binary`, `exists`, `any` and others: comes before an operand.
    Prefix,
    /// `case`.
    Case,
    /// `when`, `then`, `else`.
    Branch,
    /// `end`.
    End,
    /// `null`, `true` and others: an operand by itself.
    Literal,
    /// `union`, `except`, `intersect`, `minus`.
    Union,
    /// `all`, `distinct` and others, after `union` and `select`.
    Quantifier,
    /// `select`.
    Select,
    /// `from`.
    From,
    /// `where`, `having`.
    Condition,
    /// `group`, `order`, `partition`: requires `by`.
    Sort,
    /// `by`.
    By,
    /// `asc`, `desc`, `nulls`, `first`, `last`: follows an operand and changes nothing.
    Suffix,
    /// `limit`, `offset`, `fetch`, `top`.
    Limit,
    /// `into`.
    Into,
    /// `outfile`, `dumpfile`.
    OutFile,
    /// `procedure`.
    Procedure,
    /// `join` and the words that may precede it.
    Join,
    /// `on`, `using`, `for`, `separator`, `escape`: joins operands in some places.
    Link,
    /// `as`.
    As,
    /// `boolean`, `natural`, `language`, `mode`, `query`, `expansion`: the search modifiers of
    /// `match … against`.
    FullText,
    /// `values`.
    Values,
    /// Begins a statement.
    Verb(Verb),
    /// The kind of thing that `create`, `drop`, `alter` and `truncate` name.
    Object,
    /// A name that exists only in a database's own dictionary.
    Dictionary,
    /// A function that waits, writes, runs programs or leaks through errors, and whose name has no other use.
    Hostile,
    /// `sleep` and others: a function that waits, whose name also exists in other languages.
    Delay,
    /// A function that reveals something about the database, or its files.
    Telling,
    /// An ordinary SQL function.
    Function,
    /// Any other word.
    Name,
}

/// A statement's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `create`, `drop`, `alter`, `truncate`: requires an object.
    Define,
    /// `insert`, `replace`, `merge`: requires `into`.
    Insert,
    /// `update`: requires a name and `set`.
    Update,
    /// `delete`: requires `from`.
    Delete,
    /// `exec`, `execute`, `call`: requires a name.
    Execute,
    /// `declare`, `set`: requires a variable.
    Declare,
    /// `begin`: requires a statement or `try`.
    Begin,
    /// `goto`.
    Goto,
    /// `shutdown`, `reconfigure`, `rollback`, `commit`: stands alone.
    Alone,
    /// `waitfor`.
    WaitFor,
    /// `if`, `while`.
    If,
    /// `grant`, `revoke`, `backup`, `restore`, `attach`, `load`, `bulk`, `handler`, `show`, `pragma`, `dbcc`,
    /// `rename`, `copy`: wants a word of a fitting kind.
    Other,
}

/// Longest word of the table, in bytes.
const LONGEST: usize = 27;

/// The role of `word`, in any letter case. O(log n) in the size of the table; does not allocate.
pub fn class_of(word: &[u8]) -> Word {
    let mut lower = [0_u8; LONGEST];
    let Some(room) = lower.get_mut(..word.len()) else {
        return special(word);
    };
    room.copy_from_slice(word);
    room.make_ascii_lowercase();
    let wanted: &[u8] = room;
    let Some(first) = wanted.first().and_then(|first| first.checked_sub(b'a')) else { return Word::Name };
    let from = STARTS.get(usize::from(first)).copied().unwrap_or(0);
    let to = STARTS.get(usize::from(first) + 1).copied().unwrap_or(0);
    let same_first = TABLE.get(from..to).unwrap_or_default();
    match same_first.binary_search_by(|(known, _)| known.as_bytes().cmp(wanted)) {
        Ok(at) => same_first.get(at).map_or(Word::Name, |(_, class)| *class),
        Err(_) => special(wanted),
    }
}

/// Families of names: stored procedures and packages of databases.
fn special(word: &[u8]) -> Word {
    let begins = |prefix: &[u8]| {
        word.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
            && word.len() > prefix.len()
    };
    const HOSTILE: [&[u8]; 7] = [b"xp_", b"sp_oa", b"sp_exec", b"dbms_", b"utl_", b"pg_read_", b"pg_ls_"];
    const DICTIONARY: [&[u8]; 6] = [b"rdb$", b"mon$", b"v$", b"sys.", b"pg_stat", b"innodb_"];
    if HOSTILE.iter().any(|prefix| begins(prefix)) {
        Word::Hostile
    } else if DICTIONARY.iter().any(|prefix| begins(prefix)) {
        Word::Dictionary
    } else {
        Word::Name
    }
}

/// Where the words with each first letter begin in the table.
static STARTS: [usize; 27] = {
    let mut starts = [TABLE.len(); 27];
    let mut at = TABLE.len();
    while at > 0 {
        at -= 1;
        let letter = (TABLE[at].0.as_bytes()[0] - b'a') as usize;
        let mut before = letter as isize;
        while before >= 0 && starts[before as usize] > at {
            starts[before as usize] = at;
            before -= 1;
        }
    }
    starts
};

/// Short name for the table.
type V = Verb;

/// Sorted, lower case.
#[rustfmt::skip]
static TABLE: &[(&str, Word)] = {
    use Word::*;
    &[
        ("abs", Function), ("acos", Function), ("aes_decrypt", Function), ("aes_encrypt", Function),
        ("against", Function), ("alias", Object), ("all", Quantifier), ("all_catalog", Dictionary),
        ("all_objects", Dictionary), ("all_source", Dictionary), ("all_tab_columns", Dictionary),
        ("all_tables", Dictionary), ("all_users", Dictionary), ("all_views", Dictionary), ("alter", Verb(V::Define)),
        ("and", Logic), ("any", Prefix), ("array_agg", Function), ("as", As), ("asc", Suffix), ("ascii", Function),
        ("ascii_char", Function), ("ascii_val", Function), ("asin", Function), ("assembly", Object), ("atan", Function),
        ("atan2", Function), ("attach", Verb(V::Other)), ("avg", Function), ("backup", Verb(V::Other)),
        ("begin", Verb(V::Begin)), ("benchmark", Hostile), ("between", Between), ("bin", Function), ("binary", Prefix),
        ("bit_and", Function), ("bit_count", Function), ("bit_length", Function), ("bit_or", Function),
        ("bit_xor", Function), ("boolean", FullText), ("bulk", Verb(V::Other)), ("by", By), ("call", Verb(V::Execute)),
        ("case", Case), ("cast", Function), ("ceil", Function), ("ceiling", Function), ("certificate", Object),
        ("changes", Function), ("char", Function), ("char_length", Function), ("character_length", Function),
        ("charindex", Function), ("charset", Function), ("checksum", Function), ("chr", Function), ("coalesce", Function),
        ("coercibility", Function), ("col_length", Telling), ("col_name", Telling), ("collate", Arithmetic),
        ("collation", Function), ("column_name", Dictionary), ("commit", Verb(V::Alone)), ("compress", Function),
        ("concat", Function), ("concat_ws", Function), ("connection_id", Telling), ("contains", Function),
        ("conv", Function), ("convert", Function), ("copy", Verb(V::Other)), ("cos", Function), ("cot", Function),
        ("count", Function), ("crc32", Function), ("create", Verb(V::Define)), ("cross", Join), ("ctxsys", Hostile),
        ("curdate", Function), ("current_database", Telling), ("current_date", Literal), ("current_query", Telling),
        ("current_role", Literal), ("current_schema", Literal), ("current_setting", Telling), ("current_time", Literal),
        ("current_timestamp", Literal), ("current_user", Literal), ("curtime", Function), ("database", Telling),
        ("database_to_xml", Hostile), ("date_add", Function), ("date_format", Function), ("date_sub", Function),
        ("dateadd", Function), ("datediff", Function), ("datepart", Function), ("db_id", Telling),
        ("db_name", Dictionary), ("dba_objects", Dictionary), ("dba_tab_columns", Dictionary), ("dba_tables", Dictionary),
        ("dba_users", Dictionary), ("dbcc", Verb(V::Other)), ("dblink", Hostile), ("dblink_connect", Hostile),
        ("dbms_pipe", Hostile), ("declare", Verb(V::Declare)), ("decode", Function), ("delete", Verb(V::Delete)),
        ("des_decrypt", Function), ("des_encrypt", Function), ("desc", Suffix), ("difference", Function),
        ("distinct", Quantifier), ("distinctrow", Quantifier), ("div", Arithmetic), ("do", Verb(V::Other)),
        ("drop", Verb(V::Define)), ("dumpfile", OutFile), ("else", Branch), ("elt", Function), ("encode", Function),
        ("encrypt", Function), ("end", End), ("escape", Link), ("except", Union), ("exec", Verb(V::Execute)),
        ("execute", Verb(V::Execute)), ("exists", Prefix), ("exp", Function), ("expansion", FullText),
        ("export_set", Function), ("extension", Object), ("extract", Function), ("extractvalue", Hostile),
        ("false", Literal), ("fetch", Limit), ("field", Function), ("filetoblob", Hostile), ("filetoclob", Hostile),
        ("find_in_set", Function), ("floor", Function), ("fn_trace_gettable", Hostile),
        ("fn_xe_file_target_read_file", Hostile), ("for", Link), ("format", Function), ("found_rows", Telling),
        ("freetext", Function), ("from", From), ("from_base64", Function), ("from_unixtime", Function),
        ("fts3_tokenizer", Hostile), ("full", Join), ("function", Object), ("generate_series", Function),
        ("geometrycollection", Function), ("get_host_address", Hostile), ("getdate", Function), ("glob", Compare),
        ("goto", Verb(V::Goto)), ("grant", Verb(V::Other)), ("greatest", Function), ("group", Sort),
        ("group_concat", Function), ("group_concat_max_len", Dictionary), ("gtid_subset", Hostile),
        ("gtid_subtract", Hostile), ("handler", Verb(V::Other)), ("has_dbaccess", Telling), ("having", Condition),
        ("hex", Function), ("high_priority", Quantifier), ("host_id", Telling), ("host_name", Telling),
        ("httpuritype", Hostile), ("if", Verb(V::If)), ("ifnull", Function), ("iicolumns", Dictionary), ("iif", Function),
        ("iitables", Dictionary), ("ilike", Compare), ("in", In), ("index", Object), ("inet_aton", Function),
        ("inet_ntoa", Function), ("inet_server_addr", Telling), ("information_schema", Dictionary), ("initcap", Function),
        ("inner", Join), ("insert", Verb(V::Insert)), ("instr", Function), ("intersect", Union), ("interval", Prefix),
        ("into", Into), ("is", Is), ("is_member", Telling), ("is_srvrolemember", Telling), ("isnull", Compare),
        ("isnumeric", Function), ("join", Join), ("json_array", Function), ("json_extract", Function),
        ("json_keys", Function), ("json_length", Function), ("json_object", Function), ("json_query", Function),
        ("json_value", Function), ("kill", Verb(V::Other)), ("language", FullText), ("last_insert_id", Telling),
        ("lateral", Join), ("lcase", Function), ("least", Function), ("left", Join), ("length", Function),
        ("like", Compare), ("likelihood", Function), ("limit", Limit), ("linestring", Function), ("listagg", Function),
        ("ln", Function), ("lo_export", Hostile), ("lo_import", Hostile), ("load", Verb(V::Other)),
        ("load_extension", Hostile), ("load_file", Hostile), ("localtime", Literal), ("localtimestamp", Literal),
        ("locate", Function), ("lock", Verb(V::Other)), ("log", Function), ("log10", Function), ("log2", Function),
        ("login", Object), ("lower", Function), ("lpad", Function), ("ltrim", Function), ("make_date", Function),
        ("make_set", Function), ("match", Function), ("materialized", Object), ("max", Function), ("maxvalue", Literal),
        ("md5", Function), ("member", Compare), ("merge", Verb(V::Insert)), ("mid", Function), ("min", Function),
        ("minus", Union), ("mod", Arithmetic), ("mode", FullText), ("msysaccessobjects", Dictionary),
        ("msysaces", Dictionary), ("msysobjects", Dictionary), ("multilinestring", Function), ("multipoint", Function),
        ("multipolygon", Function), ("mysql", Dictionary), ("name_const", Function), ("natural", Join),
        ("nchar", Function), ("newid", Function), ("not", Not), ("notify", Verb(V::Other)), ("notnull", Compare),
        ("now", Function), ("null", Literal), ("nullif", Function), ("nulls", Suffix), ("nvl", Function),
        ("nvl2", Function), ("object_id", Telling), ("object_name", Telling), ("oct", Function),
        ("octet_length", Function), ("offset", Limit), ("old_password", Function), ("on", Link),
        ("opendatasource", Hostile), ("openquery", Hostile), ("openrowset", Verb(V::Other)), ("or", Logic),
        ("ord", Function), ("order", Sort), ("outer", Join), ("outfile", OutFile), ("over", Function),
        ("overlaps", Compare), ("package", Object), ("partition", Sort), ("password", Function), ("patindex", Function),
        ("performance_schema", Dictionary), ("pg_attribute", Dictionary), ("pg_authid", Dictionary),
        ("pg_backend_pid", Telling), ("pg_catalog", Dictionary), ("pg_class", Dictionary), ("pg_database", Dictionary),
        ("pg_file_write", Hostile), ("pg_namespace", Dictionary), ("pg_proc", Dictionary), ("pg_roles", Dictionary),
        ("pg_shadow", Dictionary), ("pg_sleep", Hostile), ("pg_sleep_for", Hostile), ("pg_sleep_until", Hostile),
        ("pg_tables", Dictionary), ("pg_user", Dictionary), ("pi", Function), ("polygon", Function),
        ("position", Function), ("pow", Function), ("power", Function), ("pragma", Verb(V::Other)),
        ("prepare", Verb(V::Other)), ("print", Verb(V::Other)), ("printf", Function), ("prior", Prefix),
        ("procedure", Procedure), ("query_to_xml", Hostile), ("quote", Function), ("quotename", Function),
        ("raiserror", Verb(V::Other)), ("rand", Function), ("random", Function), ("randomblob", Hostile),
        ("randomuuid", Function), ("rank", Function), ("rawtohex", Function), ("receive_message", Hostile),
        ("reconfigure", Verb(V::Alone)), ("regexp", Compare), ("regexp_count", Function), ("regexp_instr", Function),
        ("regexp_like", Function), ("regexp_replace", Function), ("regexp_substr", Function),
        ("regexp_substring", Hostile), ("rename", Verb(V::Other)), ("repeat", Function), ("replace", Verb(V::Insert)),
        ("replicate", Function), ("restore", Verb(V::Other)), ("reverse", Function), ("revoke", Verb(V::Other)),
        ("right", Join), ("rlike", Compare), ("role", Object), ("rollback", Verb(V::Alone)), ("round", Function),
        ("row", Prefix), ("row_count", Telling), ("row_number", Function), ("rownum", Literal), ("rpad", Function),
        ("rtrim", Function), ("schema", Telling), ("schema_id", Telling), ("schema_name", Dictionary),
        ("schemata", Dictionary), ("select", Select), ("separator", Link), ("sequence", Object), ("servername", Telling),
        ("session_privs", Dictionary), ("session_user", Literal), ("set", Verb(V::Declare)), ("sha", Function),
        ("sha1", Function), ("sha2", Function), ("show", Verb(V::Other)), ("shutdown", Verb(V::Alone)),
        ("sign", Function), ("similar", Compare), ("sin", Function), ("sleep", Delay), ("some", Prefix),
        ("soundex", Function), ("sounds", Compare), ("sp_addextendedproc", Hostile), ("sp_configure", Hostile),
        ("sp_makewebtask", Hostile), ("sp_password", Hostile), ("space", Function), ("spt_values", Dictionary),
        ("sql_big_result", Quantifier), ("sql_buffer_result", Quantifier), ("sql_cache", Quantifier),
        ("sql_calc_found_rows", Quantifier), ("sql_no_cache", Quantifier), ("sql_small_result", Quantifier),
        ("sqlid_to_sqlhash", Hostile), ("sqlite_master", Dictionary), ("sqlite_schema", Dictionary),
        ("sqlite_source_id", Telling), ("sqlite_temp_master", Dictionary), ("sqlite_version", Dictionary),
        ("sqrt", Function), ("st_latfromgeohash", Hostile), ("st_longfromgeohash", Hostile),
        ("st_pointfromgeohash", Hostile), ("std", Function), ("stddev", Function), ("str", Function),
        ("str_to_date", Function), ("straight_join", Quantifier), ("strcmp", Function), ("string_agg", Function),
        ("strpos", Function), ("stuff", Function), ("substr", Function), ("substring", Function), ("sum", Function),
        ("suser_name", Telling), ("suser_sid", Telling), ("suser_sname", Telling), ("sys_context", Telling),
        ("sys_eval", Hostile), ("sys_exec", Hostile), ("syscat", Dictionary), ("syscolumns", Dictionary),
        ("sysdatabases", Dictionary), ("sysdate", Literal), ("sysibm", Dictionary), ("syslogins", Dictionary),
        ("sysmaster", Dictionary), ("sysobjects", Dictionary), ("sysprocesses", Dictionary), ("systables", Dictionary),
        ("system_user", Literal), ("sysusers", Dictionary), ("sysxlogins", Dictionary), ("table", Object),
        ("table_name", Dictionary), ("table_schema", Dictionary), ("tablespace", Object), ("tan", Function),
        ("temp", Object), ("temporary", Object), ("then", Branch), ("to_base64", Function), ("to_char", Function),
        ("to_date", Function), ("to_number", Function), ("top", Limit), ("total", Function), ("translate", Function),
        ("trigger", Object), ("trim", Function), ("true", Literal), ("truncate", Verb(V::Define)), ("type", Object),
        ("typeof", Function), ("ucase", Function), ("uncompress", Function), ("unhex", Function), ("unicode", Function),
        ("union", Union), ("unique", Prefix), ("unix_timestamp", Function), ("unknown", Literal),
        ("update", Verb(V::Update)), ("updatexml", Hostile), ("upper", Function), ("use", Verb(V::Other)),
        ("user", Telling), ("user_catalog", Dictionary), ("user_name", Telling), ("user_objects", Dictionary),
        ("user_role_privs", Dictionary), ("user_tab_columns", Dictionary), ("user_tables", Dictionary),
        ("user_users", Dictionary), ("userenv", Telling), ("using", Link), ("utc_date", Literal), ("utc_time", Literal),
        ("utc_timestamp", Literal), ("utl_http", Hostile), ("utl_inaddr", Hostile), ("utl_raw", Function),
        ("uuid", Function), ("vacuum", Verb(V::Other)), ("values", Values), ("variance", Function), ("version", Telling),
        ("view", Object), ("waitfor", Verb(V::WaitFor)), ("when", Branch), ("where", Condition), ("while", Verb(V::If)),
        ("wm_concat", Function), ("xmlagg", Function), ("xmlelement", Function), ("xmlforest", Function),
        ("xmltype", Hostile), ("xor", Logic), ("xp_cmdshell", Hostile), ("xp_dirtree", Hostile),
        ("xp_fileexist", Hostile), ("xp_regread", Hostile),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_holds_no_word_longer_than_the_longest() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(TABLE.iter().map(|(word, _)| word.len()).max(), Some(LONGEST));
    }

    #[test]
    fn words_are_known_in_any_case_and_other_words_are_names() {
        assert_eq!(class_of(b"sELect"), Word::Select);
        assert_eq!(class_of(b"XP_CmdShell"), Word::Hostile);
        assert_eq!(class_of(b"xp_something_new_and_rather_long"), Word::Hostile);
        assert_eq!(class_of(b"selected"), Word::Name);
        assert_eq!(class_of(b""), Word::Name);
        assert_eq!(class_of(&[b'a'; 4096]), Word::Name);
    }
}
