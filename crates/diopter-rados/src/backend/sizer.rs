//! `Sizer`: the thread of a backend that asks for sizes and raises them, which blocks.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::Key;
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
        let size = self.file.make_ready(self.key.1, self.end);
        (self.key, size)
    }
}

/// The key of a question, and the size.
type Reply = (Key, Result<u64, Error>);

/// Asks on its own thread, which ends after the drop.
pub struct Sizer {
    questions: Sender<Question>,
    replies: Receiver<Reply>,
    /// Replies of the calling thread, if no other can be started.
    own: Vec<Reply>,
    waker: Waker,
}

impl Sizer {
    pub fn new(waker: Waker) -> Sizer {
        let (questions, asked) = channel::<Question>();
        let (reply, replies) = channel();
        let woken = waker.clone();
        let run = move || {
            for question in asked {
                if reply.send(question.reply()).is_err() {
                    return;
                }
                woken.wake();
            }
        };
        // Without a thread the channel is closed.
        std::thread::Builder::new().name("diopter-sizer".to_owned()).spawn(run).ok();
        Sizer { questions, replies, own: Vec::new(), waker }
    }

    /// Asks for the size of a file, which is raised to `end` first if the key is that of writes.
    pub fn ask(&mut self, key: Key, file: Arc<File>, end: u64) {
        let sent = self.questions.send(Question { key, file, end });
        if let Err(unsent) = sent {
            self.own.push(unsent.0.reply());
            self.waker.wake();
        }
    }

    /// Returns a reply.
    pub fn take(&mut self) -> Option<Reply> {
        self.own.pop().or_else(|| self.replies.try_recv().ok())
    }
}
