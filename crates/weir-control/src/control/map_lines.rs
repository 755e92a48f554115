//! Lines of maps that an operator's programs change.

use weir_config::LineEdit;

use super::Control;
use crate::blocking::blocking;
use crate::maps::{self, MapLineError};

impl Control {
    /// Has the map of that name say `value` of `key`, or nothing where that is `None`: in its file, and in
    /// force when this returns. `Ok(None)` where it does already.
    ///
    /// # Errors
    /// Nothing has changed then; says why.
    pub async fn change_map(
        &self,
        name: &str,
        key: String,
        value: Option<String>,
    ) -> Result<Option<LineEdit>, MapLineError> {
        // One at a time, and none beside a reload, which reads the file too.
        let _turn = self.reloading.lock().await;
        let snapshot = self.snapshot();
        let map = snapshot.maps.as_ref().and_then(|maps| maps.find(name)).cloned();
        let map = map.ok_or_else(|| MapLineError::NoMap(name.to_owned()))?;
        let bus = self.bus.clone();
        let edited = blocking(move || maps::edit(&map, &bus, &key, value.as_deref()));
        edited.await.unwrap_or_else(|error| Err(MapLineError::Store(error)))
    }
}
