//! A timer among the descriptors of an epoll. The timeout of the wait itself is in milliseconds, and at
//! 20,000 virtual users twenty requests fall due in each.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// A timer that is set to one moment at a time.
pub struct Timer {
    /// Readable from that moment on.
    pub descriptor: OwnedFd,
    set_to: Option<Instant>,
}

impl Timer {
    /// A timer that is not set. Also makes the kernel wake this thread punctually. Err if the kernel refuses
    /// either.
    pub fn new() -> io::Result<Self> {
        // The default slack of 50 us would be on the order of what is measured.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { descriptor, set_to: None })
    }

    /// Sets it to expire at `moment`, or at once if that has passed.
    pub fn set(&mut self, moment: Instant) -> io::Result<()> {
        if self.set_to == Some(moment) {
            return Ok(());
        }
        // Zero would turn it off.
        let left = moment.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let setting = Itimerspec { it_interval: never, it_value: left };
        rustix::time::timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &setting)?;
        self.set_to = Some(moment);
        Ok(())
    }

    /// Clears its expiry, so that its descriptor is no longer readable.
    pub fn take(&mut self) {
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        self.set_to = None;
    }
}
