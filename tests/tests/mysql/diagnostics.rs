//! What a session asks about the statement before it, where that ran at a replica, or nowhere.

use weir_tests::mysql::{Answer, pair};

use super::{before, client};

fn code(answer: &Answer) -> Option<u16> {
    answer.error().map(|(code, _)| code)
}

/// It always sets a variable, and keeps the session where that is.
#[test]
fn get_diagnostics_behind_a_read_at_a_replica_runs_where_the_read_ran() {
    let pair = pair();
    let weir = before(&pair);
    let replica = pair.replica.address.port().to_string();
    let mut session = client(&weir, "auto");
    assert_eq!(code(&session.asks("SELECT nothing_of_this_name")), Some(1054));
    session.does("GET DIAGNOSTICS CONDITION 1 @code = MYSQL_ERRNO");
    assert_eq!(session.does("SELECT @code").value(), "1054");
    assert_eq!(session.does("SELECT @@port").value(), replica);
    let answer = session.asks("CREATE TABLE never (n INT)");
    assert!(
        answer.error().is_some_and(|(code, text)| code == 1836 && text.contains("user_variable")),
        "{answer}"
    );
    session.resets();
    let mut session = client(&weir, "auto");
    assert_eq!(session.does("SELECT CAST('x' AS SIGNED)").value(), "0");
    session.does("GET DIAGNOSTICS @count = NUMBER");
    assert_eq!(session.does("SELECT @count").value(), "1");
    // Where there is nothing to tell it is the primary's, as whatever sets a variable.
    let mut session = client(&weir, "auto");
    session.does("SELECT 1");
    session.does("GET DIAGNOSTICS @count = NUMBER");
    assert_eq!(session.does("SELECT @count, @@port").rows()[0][1], pair.primary.address.port().to_string());
}

/// A statement that gave rows has a count of -1, wherever it ran and is asked about.
#[test]
fn get_diagnostics_tells_of_the_count_of_a_read_at_a_replica() {
    let pair = pair();
    let weir = before(&pair);
    let mut session = client(&weir, "auto");
    session.does("SELECT 1");
    session.does("GET DIAGNOSTICS @number = NUMBER, @count = ROW_COUNT");
    assert_eq!(session.does("SELECT @number, @count").rows(), [["0", "-1"]]);
    let mut session = client(&weir, "auto");
    session.does("SELECT CAST('x' AS SIGNED)");
    session.does("GET DIAGNOSTICS @number = NUMBER, @count = ROW_COUNT");
    assert_eq!(session.does("SELECT @number, @count").rows(), [["1", "-1"]]);
    // Others have used the connection since.
    let mut sessions = [client(&weir, "auto"), client(&weir, "auto")];
    for _ in 0..2 {
        sessions.iter_mut().for_each(|session| drop(session.does("SELECT 1")));
        sessions.iter_mut().for_each(|session| assert_eq!(session.does("SELECT ROW_COUNT()").value(), "-1"));
    }
    let mut session = client(&weir, "auto");
    session.does("DO 1");
    session.does("GET DIAGNOSTICS @count = ROW_COUNT");
    assert_eq!(session.does("SELECT @count").value(), "0");
}

#[test]
fn what_asks_and_sets_a_variable_besides_is_told_that_it_is_not_alone() {
    let pair = pair();
    let weir = before(&pair);
    let mut session = client(&weir, "auto");
    session.does("SELECT SQL_CALC_FOUND_ROWS 1 UNION SELECT 2 LIMIT 1");
    let answer = session.asks("SELECT FOUND_ROWS() INTO @found");
    let says =
        |(code, text): (u16, String)| code == 1105 && text.contains("a statement of its own right behind");
    assert!(answer.error().is_some_and(says), "{answer}");
    session.does("SELECT SQL_CALC_FOUND_ROWS 1 UNION SELECT 2 LIMIT 1");
    assert_eq!(session.does("SELECT FOUND_ROWS()").value(), "2");
}

#[test]
fn warnings_behind_a_refusal_of_weirs_own_are_that() {
    let pair = pair();
    let weir = before(&pair);
    for listener in ["auto", "writes", "reads"] {
        let mut session = client(&weir, listener);
        let refused = session.asks("SELECT FOUND_ROWS()").error().expect("nobody knows");
        assert_eq!(refused.0, 1105, "{listener}: {refused:?}");
        for _ in 0..2 {
            let shown = session.does("SHOW WARNINGS").rows();
            assert_eq!(shown, [["Error", "1105", &refused.1]], "{listener}");
        }
        assert_eq!(session.does("SHOW COUNT(*) ERRORS").value(), "1", "{listener}");
        session.does("GET DIAGNOSTICS CONDITION 1 @text = MESSAGE_TEXT, @state = RETURNED_SQLSTATE");
        assert_eq!(session.does("SELECT @text, @state").rows(), [[&refused.1[..], "HY000"]], "{listener}");
        assert!(session.does("SHOW WARNINGS").rows().is_empty(), "{listener}: gone behind another statement");
    }
}

/// It was told the count of the read, -1, once others had used the connection.
#[test]
fn behind_a_read_an_empty_statement_has_a_count_of_its_own() {
    let pair = pair();
    let weir = before(&pair);
    let mut sessions = [client(&weir, "writes"), client(&weir, "writes")];
    for session in &mut sessions {
        assert_eq!(code(&session.asks("SELECT 2 ; /* last */")), None);
    }
    for session in &mut sessions {
        let told = session.asks("SELECT ROW_COUNT()");
        assert!(code(&told) == Some(1105) || told.value() == "0", "{told}");
    }
}

/// Weir took what it had added for nothing, and a read of its own in between took it away.
#[test]
fn a_condition_that_does_not_exist_is_told_of_behind_get_diagnostics() {
    let pair = pair();
    let weir = before(&pair);
    let mut session = client(&weir, "writes");
    session.does("SELECT 1");
    // One of them is most likely of the same worker, and uses the connection.
    let mut others: Vec<_> = (0..8).map(|_| client(&weir, "writes")).collect();
    others.iter_mut().for_each(|other| drop(other.does("SELECT 1")));
    session.does("GET DIAGNOSTICS CONDITION 1 @code = MYSQL_ERRNO");
    let told = session.asks("GET DIAGNOSTICS @number = NUMBER, @count = ROW_COUNT");
    // The count of the read is not known where its connection was used.
    assert!(code(&told) == Some(1105) || session.does("SELECT @number").value() == "1", "{told}");
    let mut session = client(&weir, "writes");
    session.does("SELECT 1");
    session.does("GET DIAGNOSTICS CONDITION 1 @code = MYSQL_ERRNO");
    session.does("GET DIAGNOSTICS @number = NUMBER, @count = ROW_COUNT");
    assert_eq!(session.does("SHOW COUNT(*) ERRORS").value(), "1");
    assert_eq!(session.does("SELECT @number").value(), "1");
}
