//! Hands published messages to connections, and begins the tasks that carry them between front ends.

use super::Server;
use crate::command::{Forward, notify, show};
use crate::fast::Set;
use crate::resp::Reply;
use std::rc::Rc;

impl Server<'_> {
    /// See the module. The replies to subscriptions have been written before.
    pub(super) fn deliver(&mut self, touched: &mut Set<u64>) {
        let forward = &self.front.channels.forward;
        if forward.begins_to_send() {
            let front = Rc::clone(&self.front);
            self.commands.begin(|io| async move {
                Forward::send(front, io).await;
                Reply::Silence
            });
        }
        if forward.begins_to_listen(&self.front) {
            let front = Rc::clone(&self.front);
            self.commands.begin(|io| async move {
                Forward::listen(front, io).await;
                Reply::Silence
            });
        }
        if self.front.channels.begins_to_show() {
            let front = Rc::clone(&self.front);
            self.commands.begin(|io| async move {
                show(&front, &io).await;
                Reply::Silence
            });
        }
        if let Some(left) = notify::begins_to_tell(&self.front) {
            let front = Rc::clone(&self.front);
            self.commands.begin(|io| async move {
                notify::ended(&front, &io, left).await;
                Reply::Silence
            });
        }
        for line in self.front.monitors.take_due() {
            let mut bytes = Vec::new();
            line.write(2, &mut bytes);
            let bytes: Rc<[u8]> = bytes.into();
            for monitor in self.front.monitors.all() {
                if let Some(connection) = self.connections.get_mut(&monitor) {
                    connection.push(Reply::Encoded(Rc::clone(&bytes)));
                    touched.insert(monitor);
                }
            }
        }
        if !self.front.channels.is_due() {
            return;
        }
        for (id, message) in self.front.channels.take_due() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.push(Reply::Heard(message));
                touched.insert(id);
            }
        }
    }
}
