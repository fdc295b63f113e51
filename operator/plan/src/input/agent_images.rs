//! Images that a policy may give its agents. An agent is root on its node, so whoever may write a policy must not choose any
//! image.

/// Registries and repositories whose images a policy may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentImages(Vec<String>);

/// An entry of the list that no image can match.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither a registry nor a repository; write it without scheme, tag, digest and wildcards, such as registry.example/gpunode"
)]
pub struct AgentImagesError(String);

impl AgentImages {
    /// Returns the images that an operator with these settings allows: those of the list, or if that is empty, those of the
    /// repository of its agent.
    ///
    /// # Errors
    /// When an entry is neither a registry nor a repository.
    pub fn of_operator<S: AsRef<str>>(
        agent_image: &str,
        entries: impl IntoIterator<Item = S>,
    ) -> Result<Self, AgentImagesError> {
        // An empty variable is read as one empty entry.
        let mut entries = entries
            .into_iter()
            .filter(|entry| !entry.as_ref().trim().is_empty())
            .peekable();
        if entries.peek().is_none() {
            return Ok(Self::of_agent(agent_image));
        }
        Self::new(entries)
    }

    fn new<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Result<Self, AgentImagesError> {
        let entry = |text: S| {
            let entry = text.as_ref().trim().trim_end_matches('/');
            let first = entry.split('/').next().unwrap_or_default();
            let has_port = first
                .rsplit_once(':')
                .is_none_or(|(_, port)| port.parse::<u16>().is_ok());
            let has_tag = entry.contains('/') && repository(entry) != entry;
            if !entry.split('/').all(is_name) || !has_port || has_tag {
                return Err(AgentImagesError(text.as_ref().to_owned()));
            }
            // A registry, or all repositories of somebody on Docker Hub.
            let is_complete = first == "docker.io" || (first == entry && is_registry(entry));
            Ok(if is_complete {
                entry.to_owned()
            } else {
                full_name(entry)
            })
        };
        entries.into_iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the default: the repository of the agent's own image.
    pub fn of_agent(image: &str) -> Self {
        Self(vec![full_name(repository(image))])
    }

    /// Returns the image with its registry if a policy may use it: its repository is one of the list, or under one. Some
    /// container runtimes look for a name without registry elsewhere.
    pub(crate) fn allowed(&self, image: &str) -> Option<String> {
        let name = repository(image);
        let full = full_name(name);
        let is_allowed = self.0.iter().any(|entry| {
            full.strip_prefix(entry.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let tag = image.strip_prefix(name).unwrap_or_default();
        is_allowed.then(|| format!("{full}{tag}"))
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

/// Returns true for a part of a name, between slashes. The first one may have a port.
fn is_name(part: &str) -> bool {
    let may_contain = |c: char| c.is_ascii_alphanumeric() || "._-:[]".contains(c);
    !part.is_empty() && part.chars().all(may_contain)
}

/// Returns true if the first part of a name is a registry, by the rule of container runtimes.
fn is_registry(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':']) || part.contains(char::is_uppercase)
}

/// Returns a repository with its registry: `agent` stands for `docker.io/library/agent`.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some(("docker.io", rest)) if !rest.contains('/') => format!("docker.io/library/{rest}"),
        Some((first, _)) if is_registry(first) => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(list: &[&str], image: &str) -> bool {
        AgentImages::new(list).unwrap().allowed(image).is_some()
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
            ("team/agent.v2", "team/agent.v2:1", true),
            ("docker.io/team", "team/agent:1", true),
            ("docker.io/team", "docker.io/team:1", false),
            ("docker.io", "EVIL/team/agent:1", false),
        ] {
            assert_eq!(allowed(&[list], image), expected, "{list} {image}");
        }
    }

    #[test]
    fn default_is_the_repository_of_the_agent() {
        let images = AgentImages::of_agent("localhost:5000/gpunode-agent:0.1.0@sha256:00");
        assert_eq!(images.names(), "localhost:5000/gpunode-agent");
        assert!(images.allowed("localhost:5000/gpunode-agent:0.2.0").is_some());
        assert_eq!(images.allowed("localhost:5000/other"), None);
        // Such as an empty variable, or a comma at the end.
        let empty: [&[&str]; 3] = [&[], &[""], &[" ", ""]];
        for entries in empty {
            let images = AgentImages::of_operator("example.com/a:1", entries).unwrap();
            assert_eq!(images.names(), "example.com/a");
        }
        let images = AgentImages::of_operator("example.com/a:1", ["example.com/b", ""]).unwrap();
        assert_eq!(images.names(), "example.com/b");
    }

    #[test]
    fn allowed_image_has_its_registry_so_that_every_runtime_pulls_what_was_checked() {
        let images = AgentImages::new(["docker.io", "registry.example"]).unwrap();
        for (image, full) in [
            ("agent", "docker.io/library/agent"),
            ("team/agent:1@sha256:00", "docker.io/team/agent:1@sha256:00"),
            ("docker.io/agent:1", "docker.io/library/agent:1"),
            ("registry.example/agent:1", "registry.example/agent:1"),
        ] {
            assert_eq!(images.allowed(image).as_deref(), Some(full));
        }
    }

    #[test]
    fn entry_that_no_image_can_match_is_an_error() {
        for entry in [
            "",
            " ",
            "/",
            "registry.example/agent:1",
            "registry.example/agent@sha256:00",
            "agent:latest",
            "https://registry.example/team",
            "*.example.com",
            "/team",
            "registry.example/my team",
        ] {
            assert_eq!(AgentImages::new([entry]), Err(AgentImagesError(entry.to_owned())));
        }
    }
}
