//! Reports backends that are Weir's own listeners.

use crate::fields::Fields;
use crate::plane::Plane;
use crate::report::{Findings, Span};
use crate::uses::Uses;
use crate::values::address::backend_at;
use crate::values::bind::Bind;

/// Reports each backend of the pool that is a bind of a listener that leads to the pool. On the kernel plane
/// that is already a mistake.
pub(super) fn check(root: &Fields, pool: (&str, &Fields), uses: &Uses, findings: &mut Findings<'_>) {
    let (name, fields) = pool;
    for (at, backend) in fields.tables("backends") {
        let Some(address) = backend.text("address").and_then(backend_at) else { continue };
        let accepts = |(_, value): &&(Span, _)| {
            Bind::inet_of(value).is_some_and(|bind| {
                let ip = bind.first.ip().to_canonical();
                // A socket on the unspecified address accepts for any address of this host; of those only
                // loopback is known for sure here.
                let is_there = ip == address.ip().to_canonical()
                    || (ip.is_unspecified() && address.ip().to_canonical().is_loopback());
                is_there && bind.ports().contains(&address.port())
            })
        };
        let leads_here = |listener: &str| {
            uses.of(name).iter().any(|place| place.listener == listener && place.plane != Some(Plane::Kernel))
        };
        let mut listeners = root.named("listener").filter(|listener| leads_here(&listener.name));
        let found = listeners.find_map(|listener| {
            let bind_at = listener.list("bind").iter().find(accepts)?.0;
            Some((listener.name.clone(), bind_at))
        });
        if let Some((listener, bind_at)) = found {
            let hint = format!(
                "what goes there comes back until `via` says that it went round 16 times: listener `{listener}` leads to this pool, and accepts there ({})",
                findings.place(bind_at)
            );
            findings.warning(at, format!("pool `{name}` leads back to Weir itself"), hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check_text;

    #[test]
    fn a_backend_where_a_listener_of_the_pool_accepts_is_warned_of() {
        let warnings = |bind: &str, backend: &str| {
            let text = format!(
                "[listener.web]\nbind = '{bind}'\npool = 'app'\n[listener.other]\nbind = '127.0.0.1:81'\npool = 'rest'\n[pool.app]\nbackends = ['{backend}']\n[pool.rest]\nbackends = ['127.0.0.1:80']\n"
            );
            check_text("weir.toml", &text).expect("nothing is refused").warnings.to_string()
        };
        for (bind, backend) in
            [("127.0.0.1:80", "127.0.0.1:80"), ("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80")]
        {
            let said = warnings(bind, backend);
            assert!(said.contains("pool `app` leads back to Weir itself"), "{bind} {backend}: {said}");
            assert!(said.contains("listener `web` leads to this pool"), "{said}");
        }
        // One listener may forward to another.
        for (bind, backend) in [("127.0.0.1:80", "127.0.0.1:81"), ("0.0.0.0:80", "10.0.0.1:80")] {
            assert_eq!(warnings(bind, backend), "", "{bind} {backend}");
        }
    }
}
