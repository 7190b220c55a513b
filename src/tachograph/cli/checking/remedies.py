"""What to do about a failure, by what it says."""

from __future__ import annotations

# The first that fits counts.
_REMEDIES = (
    (("Name or service not known", "nodename nor servname", "name resolution", "gaierror", "DNS resolution"),
     "there is no such host: is its name right, and does this machine find it?"),
    (("WRONG_VERSION_NUMBER", "RECORD_LAYER", "record layer"),
     "the port does not speak TLS: http:// in place of https://?"),
    (("CERTIFICATE_VERIFY_FAILED", "certificate verify"),
     "its certificate is not trusted: SSL_CERT_FILE, or OTEL_EXPORTER_OTLP_CERTIFICATE, may name who vouches for it"),
    (("refused", "UNAVAILABLE"), "nothing listens there: does the server run, and is the port right?"),
    (("Timeout", "timed out", "DEADLINE"), "it does not answer: is a firewall or a proxy in between?"),
    (("RemoteDisconnected", "reset by peer", "BadStatusLine"),
     "something else than this protocol is spoken there: is the port right, and http or https?"),
    (("answered 401", "UNAUTHENTICATED"), "who may write there says OTEL_EXPORTER_OTLP_HEADERS"),
    (("answered 403", "PERMISSION_DENIED"), "these credentials are not allowed to write there"),
    (("answered 404", "UNIMPLEMENTED"), "it is reached, but takes no such data there: is the path of the URL right?"),
)  # fmt: skip


def remedy(why: str) -> str:
    """Return what to do; an empty string where the reason says it itself."""
    if why.endswith("?"):
        return ""
    return next((what for signs, what in _REMEDIES if any(sign in why for sign in signs)), "")
