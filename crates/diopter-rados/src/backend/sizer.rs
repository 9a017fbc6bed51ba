//! `Sizer`: the threads of a backend that ask for sizes and raise them, which blocks.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::{Key, Purpose};
use crate::error::Error;
use crate::loader::Waker;
use crate::striper::File;

/// A question: the key of its reply, the file, and the end of a read or a write.
struct Question {
    key: Key,
    file: Arc<File>,
    end: u64,
}

impl Question {
    fn reply(self) -> Reply {
        let size = self.file.make_ready(self.key.1 != Purpose::Read, self.end);
        (self.key, size)
    }
}

/// The key of a question, and the size.
type Reply = (Key, Result<u64, Error>);

/// Asks on threads, of which each has one question at a time: a file whose lock waits for a store
/// holds up no other. They end after the drop.
pub struct Sizer {
    threads: Vec<Sender<Question>>,
    /// The threads without a question.
    idle: Vec<usize>,
    reply: Sender<(usize, Reply)>,
    replies: Receiver<(usize, Reply)>,
    /// Replies of the calling thread, if no other can be started.
    own: Vec<Reply>,
    waker: Waker,
}

impl Sizer {
    pub fn new(waker: Waker) -> Sizer {
        let (reply, replies) = channel();
        Sizer { threads: Vec::new(), idle: Vec::new(), reply, replies, own: Vec::new(), waker }
    }

    /// Asks for the size of a file, which is raised to `end` first for writes.
    pub fn ask(&mut self, key: Key, file: Arc<File>, end: u64) {
        let thread = self.idle.pop().unwrap_or_else(|| self.start());
        if let Err(unsent) = self.threads[thread].send(Question { key, file, end }) {
            self.own.push(unsent.0.reply());
            self.waker.wake();
        }
    }

    /// Starts a thread, and returns its number. Without a thread the channel is closed.
    fn start(&mut self) -> usize {
        let (question, asked) = channel::<Question>();
        let (reply, woken, number) = (self.reply.clone(), self.waker.clone(), self.threads.len());
        let run = move || {
            for question in asked {
                if reply.send((number, question.reply())).is_err() {
                    return;
                }
                woken.wake();
            }
        };
        std::thread::Builder::new().name("diopter-sizer".to_owned()).spawn(run).ok();
        self.threads.push(question);
        number
    }

    /// Returns a reply.
    pub fn take(&mut self) -> Option<Reply> {
        if let Some(own) = self.own.pop() {
            return Some(own);
        }
        let (thread, reply) = self.replies.try_recv().ok()?;
        self.idle.push(thread);
        Some(reply)
    }
}
