//! Changes to lines of maps by an operator's programs.

use weir_config::LineEdit;

use super::Control;
use crate::blocking::blocking;
use crate::maps::{self, MapLineError};

impl Control {
    /// Sets the value for `key` in the map with that name, or removes the key if `value` is `None`: in its
    /// file, and in force when this returns. `Ok(None)` if nothing had to be changed.
    ///
    /// # Errors
    /// The reason; nothing was changed.
    pub async fn change_map(
        &self,
        name: &str,
        key: String,
        value: Option<String>,
    ) -> Result<Option<LineEdit>, MapLineError> {
        // One at a time, and not during a reload, which also reads the file.
        let _turn = self.reloading.lock().await;
        let snapshot = self.snapshot();
        let map = snapshot.maps.as_ref().and_then(|maps| maps.find(name)).cloned();
        let map = map.ok_or_else(|| MapLineError::NoMap(name.to_owned()))?;
        let bus = self.bus.clone();
        let edited = blocking(move || maps::edit(&map, &bus, &key, value.as_deref()));
        edited.await.unwrap_or_else(|error| Err(MapLineError::Store(error)))
    }
}
