//! Values of enums in a status that a newer agent may write. They never make the rest of the status unreadable.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, value},
};

/// Deserializes a value of an enum; none for one that this version does not know.
pub(crate) fn known_or_none<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| T::deserialize(value::StringDeserializer::<value::Error>::new(text)).ok()))
}
