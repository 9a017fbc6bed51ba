//! The route of calls that take what is cached by default.

use diopter_core::error::SetupError;
use diopter_core::policy::RoutePolicy;
use diopter_core::request::Request;
use diopter_core::sync::OnceLock;
use diopter_os::Errno;

/// The variable of the environment that sets the route.
const VARIABLE: &str = "DIOPTER_ROUTE";

/// Returns the route policy of readers, of ranges, and of files that the bindings open, where the
/// file and its engine have no other policy: [`RoutePolicy::Adaptive`], or what the variable
/// `DIOPTER_ROUTE` of the environment says, `adaptive` or `direct`. An empty variable counts as
/// none. The variable is read once in the life of a process.
///
/// # Errors
/// `EINVAL` for any other value. Readers and ranges are direct then.
pub fn default_route() -> Result<RoutePolicy, SetupError> {
    static ROUTE: OnceLock<Option<RoutePolicy>> = OnceLock::new();
    let route = ROUTE.get_or_init(|| {
        let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
            return Some(RoutePolicy::Adaptive);
        };
        let known = [RoutePolicy::Adaptive, RoutePolicy::Direct];
        known.into_iter().find(|route| value == route.name())
    });
    let (what, remedy) = ("use the variable DIOPTER_ROUTE", "set it to adaptive or direct");
    route.ok_or_else(|| SetupError::new(what, None, Errno::EINVAL, remedy))
}

/// Returns true if the default route is [`RoutePolicy::Adaptive`]. Returns false where
/// [`default_route`] fails.
#[must_use]
pub fn is_adaptive_by_default() -> bool {
    matches!(default_route(), Ok(RoutePolicy::Adaptive))
}

/// Gives a read of a reader or a range the default route.
pub(super) fn apply(read: Request) -> Request {
    read.adaptive(is_adaptive_by_default())
}
