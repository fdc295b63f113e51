//! Images that a policy may give its agents. An agent is root on its node, so whoever may write a policy must not choose any
//! image.

/// Registries and repositories whose images a policy may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentImages(Vec<String>);

/// An entry of the list that no image can match.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither a registry nor a repository; write it without tag and digest, such as registry.example/gpunode"
)]
pub struct AgentImagesError(String);

impl AgentImages {
    /// Reads a list of registries and repositories.
    ///
    /// # Errors
    /// When an entry is empty or has a tag or digest.
    pub fn new<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Result<Self, AgentImagesError> {
        let entry = |text: S| {
            let entry = text.as_ref().trim().trim_end_matches('/');
            let has_tag = entry.contains('/') && repository(entry) != entry;
            if entry.is_empty() || entry.contains('@') || has_tag {
                return Err(AgentImagesError(text.as_ref().to_owned()));
            }
            Ok(full_name(entry, is_registry(entry)))
        };
        entries.into_iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the default: the repository of the agent's own image.
    pub fn of_agent(image: &str) -> Self {
        Self(vec![full_name(repository(image), false)])
    }

    /// Returns true if a policy may use the image: its repository is one of the list, or under one.
    pub(crate) fn allows(&self, image: &str) -> bool {
        let repository = full_name(repository(image), false);
        self.0.iter().any(|entry| {
            repository
                .strip_prefix(entry.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Returns the entries with their registries, as a list for people.
    pub fn names(&self) -> String {
        self.0.join(", ")
    }
}

/// Returns an image without tag and digest. A colon before the last slash is the port of a registry.
fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or_default();
    match (name.rfind(':'), name.rfind('/')) {
        (Some(colon), slash) if slash.is_none_or(|slash| slash < colon) => name.get(..colon).unwrap_or(name),
        _ => name,
    }
}

/// Returns true if the first part of a name is a registry, by the rule of container runtimes.
fn is_registry(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

/// Returns a repository with its registry: container runtimes take `agent` for `docker.io/library/agent`.
fn full_name(name: &str, is_complete: bool) -> String {
    match name.split_once('/') {
        _ if is_complete => name.to_owned(),
        Some((first, _)) if is_registry(first) => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(list: &[&str], image: &str) -> bool {
        AgentImages::new(list).unwrap().allows(image)
    }

    #[test]
    fn images_match_at_the_boundary_of_a_repository() {
        let repository = ["registry.example/team/agent"];
        for image in [
            "registry.example/team/agent",
            "registry.example/team/agent:1.2",
            "registry.example/team/agent@sha256:00",
            "registry.example/team/agent:1.2@sha256:00",
            "registry.example/team/agent/debug:1",
        ] {
            assert!(allowed(&repository, image), "{image}");
        }
        for image in [
            "registry.example/team/agent-evil:1",
            "registry.example/team/agentevil",
            "registry.example/team:agent",
            "registry.example/team",
            "registry.example:5000/team/agent:1",
            "registry.example.evil/team/agent",
            "evil/registry.example/team/agent",
            "team/agent:1",
        ] {
            assert!(!allowed(&repository, image), "{image}");
        }
        for (list, image, expected) in [
            ("registry.example", "registry.example/any/thing:1", true),
            ("registry.example", "registry.example.evil/any", false),
            ("registry.example", "registry.example:5000/any", false),
            ("registry.example:5000", "registry.example:5000/any:1", true),
            ("registry.example:5000", "registry.example:50001/any:1", false),
            ("registry.example/team/", "registry.example/team/agent:1", true),
            ("team/agent", "docker.io/team/agent:1", true),
            ("docker.io/library", "agent:1", true),
            ("agent", "agent:1", true),
            ("agent", "agent/x:1", false),
        ] {
            assert_eq!(allowed(&[list], image), expected, "{list} {image}");
        }
    }

    #[test]
    fn default_is_the_repository_of_the_agent() {
        let images = AgentImages::of_agent("localhost:5000/gpunode-agent:0.1.0@sha256:00");
        assert_eq!(images.names(), "localhost:5000/gpunode-agent");
        assert!(images.allows("localhost:5000/gpunode-agent:0.2.0"));
        assert!(!images.allows("localhost:5000/other"));
    }

    #[test]
    fn entry_that_no_image_can_match_is_an_error() {
        for entry in [
            "",
            " ",
            "/",
            "registry.example/agent:1",
            "registry.example/agent@sha256:00",
        ] {
            assert_eq!(AgentImages::new([entry]), Err(AgentImagesError(entry.to_owned())));
        }
    }
}
