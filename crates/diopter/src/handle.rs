//! `Engine`: the queued interface, which is the core's, with examples.

/// # Examples
///
/// A write of any alignment, and its result:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("data");
/// use std::time::Duration;
/// let file = diopter::File::create(&path)?;
/// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
/// let mut memory = diopter::IoBuf::new(5000)?;
/// memory.fill(7);
/// engine.start(&file, diopter::Request::write(3, memory))?;
/// let done = engine.wait(Duration::from_secs(10))?.expect("one is in flight");
/// assert!(done.outcome().is_all_done());
/// assert_eq!(done.result?.get(), 5000);
/// # Ok(())
/// # }
/// ```
///
/// All results of a round at once, with [`wait_many`](Engine::wait_many):
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("data");
/// # use std::time::Duration;
/// let file = diopter::File::create(&path)?;
/// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
/// for at in [0, 4096, 8192] {
///     engine.start(&file, diopter::Request::write(at, diopter::IoBuf::new(4096)?))?;
/// }
/// let mut done = Vec::new();
/// while engine.wait_many(Duration::from_secs(10), &mut done)? > 0 {
///     for finished in done.drain(..) {
///         assert_eq!(finished.result?.get(), 4096);
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// A callback, with [`start_with`](Engine::start_with):
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let file = diopter::File::create(directory.path().join("data"))?;
/// use std::time::Duration;
/// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
/// let (sender, results) = std::sync::mpsc::channel();
/// let completion = diopter::Completion::quick(move |done| {
///     sender.send(done.result).expect("the receiver is there");
/// });
/// let write = diopter::Request::write(0, diopter::IoBuf::new(4096)?);
/// engine.start_with(&file, write, completion).map_err(|(refused, _)| refused)?;
/// while engine.in_flight() > 0 {
///     engine.wait(Duration::from_secs(10))?;
/// }
/// assert_eq!(results.recv()??.get(), 4096);
/// # Ok(())
/// # }
/// ```
///
/// Borrowed memory, with [`scope`](Engine::scope):
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let file = diopter::File::create(directory.path().join("data"))?;
/// # file.write_all_at(b"borrowed memory", 0)?;
/// let engine = diopter::Engine::new(diopter::EngineOptions::default())?;
/// let (mut left, mut right) = ([0; 8], [0; 7]);
/// engine.scope(|scope| {
///     let first = scope.read(&file, &mut left, 0)?;
///     let second = scope.read(&file, &mut right, 8)?; // both are in flight
///     first.wait().check_whole()?;
///     second.wait().check_whole()?;
///     Ok::<(), diopter::Error>(())
/// })?;
/// assert_eq!([&left[..], &right[..]].concat(), b"borrowed memory");
/// # Ok(())
/// # }
/// ```
///
/// The memory must outlive the scope:
///
/// ```compile_fail,E0597
/// # fn start(engine: &diopter::Engine, file: &diopter::File) {
/// engine.scope(|scope| {
///     let mut memory = [0; 4096];
///     let read = scope.read(file, &mut memory, 0);
/// });
/// # }
/// ```
///
/// and is unreachable until the scope ends:
///
/// ```compile_fail,E0502
/// # fn start(engine: &diopter::Engine, file: &diopter::File) {
/// let mut memory = [0; 4096];
/// engine.scope(|scope| {
///     let read = scope.read(file, &mut memory, 0);
///     assert_eq!(memory[0], 0);
///     drop(read);
/// });
/// # }
/// ```
///
/// A buffer is moved into a request, so no two requests in flight have the same buffer:
///
/// ```compile_fail,E0382
/// # fn start(engine: &diopter::Engine, file: &diopter::File) {
/// let memory = diopter::IoBuf::new(4096).unwrap();
/// engine.start(file, diopter::Request::write(0, memory)).unwrap();
/// engine.start(file, diopter::Request::write(4096, memory)).unwrap(); // moved into the first one
/// # }
/// ```
///
/// A process that exits without dropping the engine: see [`InFlight`](crate::InFlight).
#[doc(inline)]
pub use diopter_core::engine::Engine;
