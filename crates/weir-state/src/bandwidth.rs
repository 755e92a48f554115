//! The bandwidth meters that all connections of a listener share.

use std::sync::Arc;

use weir_io::meter::Meter;

/// The meters of one listener, one per direction. A reload that leaves their settings alone keeps them.
#[derive(Debug, Default)]
pub struct Bandwidth {
    config: Option<weir_config::Bandwidth>,
    /// Meters bytes to clients; `None` without a limit.
    pub to_client: Option<Arc<Meter>>,
    /// Meters bytes from clients; `None` without a limit.
    pub from_client: Option<Arc<Meter>>,
}

impl Bandwidth {
    pub(crate) fn compile(
        config: Option<weir_config::Bandwidth>,
        old: Option<&Arc<Bandwidth>>,
    ) -> Arc<Bandwidth> {
        if let Some(old) = old.filter(|old| old.config == config) {
            return old.clone();
        }
        let meter = |rate: Option<u64>| {
            let burst = config.as_ref().map(|config| config.burst).unwrap_or_default();
            rate.map(|rate| Arc::new(Meter::new(rate, burst)))
        };
        Arc::new(Bandwidth {
            config,
            to_client: meter(config.and_then(|it| it.total_to_client)),
            from_client: meter(config.and_then(|it| it.total_from_client)),
        })
    }
}
