//! Keys and certificates of a cluster.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

/// The cluster's authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its key, both PEM.
pub(crate) struct Credential {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The pair of keys that sign and verify service account tokens, both PEM.
pub(crate) struct SigningKey {
    pub(crate) private: String,
    pub(crate) public: String,
}

impl SigningKey {
    pub(crate) fn new() -> Result<Self> {
        let key = key()?;
        Ok(SigningKey {
            private: key.serialize_pem(),
            public: key.public_key_pem(),
        })
    }
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "gpunode-cluster");
        let key = key()?;
        let certificate = params
            .self_signed(&key)
            .context("sign the authority's certificate")?
            .pem();
        Ok(Authority {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// The authority's certificate, PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Credential of a user, perhaps in a group.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Credential> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params, user)
    }

    /// Credential of a server at these names and addresses.
    pub(crate) fn server(&self, names: &[&str], addresses: &[Ipv4Addr]) -> Result<Credential> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let what = names.first().cloned().unwrap_or_default();
        let mut params = CertificateParams::new(names).context("name a certificate")?;
        params.distinguished_name.push(DnType::CommonName, what.as_str());
        params
            .subject_alt_names
            .extend(addresses.iter().map(|address| SanType::IpAddress(IpAddr::V4(*address))));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params, &what)
    }

    fn sign(&self, params: &CertificateParams, what: &str) -> Result<Credential> {
        let key = key()?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("sign the certificate of {what}"))?;
        Ok(Credential {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn key() -> Result<KeyPair> {
    KeyPair::generate().context("make a key")
}
