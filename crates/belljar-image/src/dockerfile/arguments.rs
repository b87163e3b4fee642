//! What stands after a keyword: lists of words, lists in JSON, pairs.

use super::Problem;

/// A list of strings in JSON; something else is a line for the shell, and a list of other things is a mistake.
pub(super) fn json(rest: &str) -> Option<Result<Vec<String>, Problem>> {
    let rest = rest.trim_start();
    if !rest.starts_with('[') {
        return None;
    }
    let values: Vec<serde_json::Value> = serde_json::from_str(rest).ok()?;
    let texts = values.into_iter().map(|value| match value {
        serde_json::Value::String(text) => Ok(text),
        other => Err(Problem::NotAString(other.to_string())),
    });
    Some(texts.collect())
}

/// Words between spaces; quotes mean nothing.
pub(super) fn plain_words(rest: &str) -> Vec<String> {
    rest.split(is_space).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// A list in JSON, or else words between spaces.
pub(super) fn json_or_words(rest: &str) -> Result<Vec<String>, Problem> {
    json(rest).unwrap_or_else(|| Ok(plain_words(rest)))
}

/// What Docker cuts words at.
pub(super) fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\x0b' | '\x0c' | '\r')
}

/// Words between spaces that are not quoted; quotes and escapes stay.
pub(super) fn quoted_words(rest: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut letters = rest.chars().peekable();
    while let Some(letter) = letters.next() {
        if quote.is_none() && letter.is_whitespace() {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        if letter == escape && quote != Some('\'') {
            // An escape at the very end is dropped.
            if let Some(next) = letters.next() {
                word.extend([letter, next]);
            }
            continue;
        }
        match quote {
            None if matches!(letter, '\'' | '"') => quote = Some(letter),
            Some(open) if open == letter => quote = None,
            _ => {}
        }
        word.push(letter);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// `a=b c=d`, or the old `a b c d`, where all after the first word is the value.
pub(super) fn pairs(rest: &str, escape: char) -> Result<Vec<(String, String)>, Problem> {
    let words = quoted_words(rest, escape);
    let Some(first) = words.first() else { return Err(Problem::Nothing) };
    if !first.contains('=') {
        let (name, value) = rest.split_once(is_space).ok_or(Problem::NoValue(first.clone()))?;
        return Ok(vec![(name.to_owned(), value.trim_start_matches(is_space).to_owned())]);
    }
    words.iter().map(|word| pair(word)).collect()
}

fn pair(word: &str) -> Result<(String, String), Problem> {
    let (name, value) = word.split_once('=').ok_or_else(|| Problem::NoEquals(word.to_owned()))?;
    if name.is_empty() {
        return Err(Problem::NoName(word.to_owned()));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_in_json_are_told_from_lines_for_the_shell() {
        assert_eq!(json(r#" ["a", "b c"]"#), Some(Ok(vec!["a".to_owned(), "b c".to_owned()])));
        assert_eq!(json("[]"), Some(Ok(vec![])));
        for line in ["['a']", r#"["a",]"#, r#"["a"] b"#, "[ -f x ]", "a"] {
            assert_eq!(json(line), None, "{line}");
        }
        assert_eq!(json(r#"["a", 1]"#), Some(Err(Problem::NotAString("1".to_owned()))));
    }

    #[test]
    fn pairs_have_two_forms() {
        let pairs = |rest: &str| super::pairs(rest, '\\');
        let of = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(pairs("a b=c  d").unwrap(), of(&[("a", "b=c  d")]));
        assert_eq!(
            pairs(r#"a="b c" d=e\ f g='h i'"#).unwrap(),
            of(&[("a", "\"b c\""), ("d", "e\\ f"), ("g", "'h i'")])
        );
        assert_eq!(pairs(r#""a b"=c"#).unwrap(), of(&[("\"a b\"", "c")]));
        assert_eq!(pairs("a=").unwrap(), of(&[("a", "")]));
        assert_eq!(pairs("a"), Err(Problem::NoValue("a".to_owned())));
        assert_eq!(pairs("a=b c"), Err(Problem::NoEquals("c".to_owned())));
        assert_eq!(pairs("=b"), Err(Problem::NoName("=b".to_owned())));
        assert_eq!(pairs(""), Err(Problem::Nothing));
    }
}
