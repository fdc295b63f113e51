//! YAML scalars without quotes or with a tag, resolved as kubectl and the API server do.
//!
//! Both read YAML by the rules of 1.1 (`resolve` in go.yaml.in/yaml/v2, under sigs.k8s.io/yaml), where `yes` and `on` are
//! booleans and `0777` and `1_000` are numbers. A label value written that way is refused by the API server as no string.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::{Number, Value};

/// Base64 as Go's `base64.StdEncoding` reads it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A scalar without a JSON value.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub enum ScalarError {
    /// Infinity, or no number.
    #[error("{0} is not a JSON number")]
    Number(String),
    /// Text that its tag does not fit.
    #[error("{text} is no {tag}; remove the tag {tag}")]
    Tag {
        /// The text.
        text: String,
        /// The tag, `!!int` for example.
        tag: String,
    },
}

/// Returns the JSON value of the scalar `text` with the tag `tag`, with or without quotes. Text with a tag that YAML does not define is a
/// string.
///
/// # Errors
/// If the tag does not fit the text.
pub fn resolve_tagged(text: &str, tag: &str) -> Result<Value, ScalarError> {
    let Some(name) = tag.strip_prefix("tag:yaml.org,2002:") else {
        return Ok(Value::String(text.to_owned()));
    };
    let value = match name {
        "null" => resolve(text).ok().filter(Value::is_null),
        "bool" => resolve(text).ok().filter(Value::is_boolean),
        "int" => integer(&text.replace('_', "")).map(Value::Number),
        "float" => resolve(text).ok().filter(Value::is_number),
        "binary" => {
            let text = text.replace(['\n', '\r'], "");
            let bytes = BASE64.decode(text).ok();
            bytes.map(|bytes| Value::String(String::from_utf8_lossy(&bytes).into_owned()))
        }
        // Whether it is one is not checked: no field has this type.
        "timestamp" => None,
        _ => Some(Value::String(text.to_owned())),
    };
    value.ok_or_else(|| ScalarError::Tag {
        text: text.to_owned(),
        tag: format!("!!{name}"),
    })
}

/// Returns the JSON value of the unquoted scalar `text`.
///
/// # Errors
/// If JSON has no such number.
pub fn resolve(text: &str) -> Result<Value, ScalarError> {
    plain(text).ok_or_else(|| ScalarError::Number(text.to_owned()))
}

fn plain(text: &str) -> Option<Value> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Some(Value::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Some(Value::Bool(false));
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf"
        | "-.INF" => return None,
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return Some(Value::String(text.to_owned()));
    }
    let digits = text.replace('_', "");
    if let Some(number) = integer(&digits) {
        return Some(Value::Number(number));
    }
    if !is_float(&digits) {
        return Some(Value::String(text.to_owned()));
    }
    number(digits.parse().ok()?)
}

/// Returns a float as Go's JSON encoder writes it: a whole number without a fraction.
#[allow(clippy::cast_possible_truncation, reason = "whole numbers below 2^53 are exact")]
fn number(float: f64) -> Option<Value> {
    if float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0 {
        return Some(Value::Number((float as i64).into()));
    }
    Number::from_f64(float).map(Value::Number)
}

/// Go's `strconv.ParseInt(text, 0, 64)`, then `ParseUint`: decimal, or after `0x`, `0o`, `0b` or a leading zero.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (base, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, digits.get(2..)?),
        Some("0o" | "0O") => (8, digits.get(2..)?),
        Some("0b" | "0B") => (2, digits.get(2..)?),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let value = u64::from_str_radix(digits, base).ok()?;
    if negative {
        i64::try_from(-i128::from(value)).ok().map(Number::from)
    } else {
        Some(value.into())
    }
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`
fn is_float(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(m, e)| (m, Some(e)));
    let mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => is_digits(fraction),
        Some((whole, fraction)) => is_digits(whole) && (fraction.is_empty() || is_digits(fraction)),
        None => is_digits(mantissa),
    };
    mantissa && exponent.is_none_or(|exponent| is_digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scalars_mean_what_kubectl_takes_them_for() {
        for (text, value) in [
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("n", json!(false)),
            ("~", json!(null)),
            ("v100", json!("v100")),
            ("4", json!(4)),
            ("-4", json!(-4)),
            ("+4", json!(4)),
            ("4.0", json!(4)),
            ("1e3", json!(1000)),
            ("0.5", json!(0.5)),
            ("0777", json!(511)),
            ("0x1F", json!(31)),
            ("0b11", json!(3)),
            ("1_000", json!(1000)),
            ("089", json!(89)),
            ("30Gi", json!("30Gi")),
            ("-", json!("-")),
            (".", json!(".")),
            ("1.2.3", json!("1.2.3")),
            ("2001-01-01", json!("2001-01-01")),
            ("yEs", json!("yEs")),
        ] {
            assert_eq!(resolve(text), Ok(value), "{text}");
        }
        assert_eq!(resolve(".inf"), Err(ScalarError::Number(".inf".to_owned())));
    }

    #[test]
    fn a_tag_decides_what_a_scalar_is() {
        for (tag, text, value) in [
            ("tag:yaml.org,2002:str", "4", Some(json!("4"))),
            ("tag:yaml.org,2002:int", "4", Some(json!(4))),
            ("tag:yaml.org,2002:int", "4.0", None),
            ("tag:yaml.org,2002:int", "four", None),
            ("tag:yaml.org,2002:float", "4", Some(json!(4))),
            ("tag:yaml.org,2002:float", ".5", Some(json!(0.5))),
            ("tag:yaml.org,2002:float", "half", None),
            ("tag:yaml.org,2002:bool", "yes", Some(json!(true))),
            ("tag:yaml.org,2002:bool", "1", None),
            ("tag:yaml.org,2002:null", "", Some(json!(null))),
            ("tag:yaml.org,2002:null", "0", None),
            ("tag:yaml.org,2002:binary", "djEw\nMA==", Some(json!("v100"))),
            ("tag:yaml.org,2002:binary", "djEwMB==", Some(json!("v100"))),
            ("tag:yaml.org,2002:binary", "", Some(json!(""))),
            ("tag:yaml.org,2002:binary", "rollout", None),
            ("tag:yaml.org,2002:set", "4", Some(json!("4"))),
            ("!mine", "4", Some(json!("4"))),
            ("!", "4", Some(json!("4"))),
        ] {
            assert_eq!(resolve_tagged(text, tag).ok(), value, "{tag} {text}");
        }
    }
}
