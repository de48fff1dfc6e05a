//! The free frames of each size class, by segments. Pure.
//!
//! A class takes frames from the segment that it took from last. A segment of which all frames are
//! free is known at once: another class may have it.

use crate::class::{CLASSES, Class, GROUP};

/// Frames of one class.
pub struct Room {
    class: Class,
    /// By number: free frames of a segment, of which the last is taken first. `None`: it was given
    /// back.
    segments: Vec<Option<Vec<u16>>>,
    /// Numbers of its segments, in the order in which the hand goes.
    order: Vec<usize>,
    /// Numbers of segments with a free frame.
    roomy: Vec<usize>,
    /// Numbers that were given back.
    spare: Vec<usize>,
    free: usize,
    /// Segments of which all frames are free.
    empty: usize,
    /// Where the hand is: a place in `order`, and a frame.
    hand: (usize, usize),
    /// A segment from which no frame is taken any more.
    closed: Option<usize>,
    /// Of each group of [`GROUP`] segments, whether it was whole since it was empty.
    whole: Vec<bool>,
    /// Bytes that left since the last look.
    pub gone: usize,
}

impl Room {
    fn new(class: Class) -> Room {
        Room {
            class,
            segments: Vec::new(),
            order: Vec::new(),
            roomy: Vec::new(),
            spare: Vec::new(),
            free: 0,
            empty: 0,
            hand: (0, 0),
            closed: None,
            whole: Vec::new(),
            gone: 0,
        }
    }

    pub fn of_all() -> [Room; CLASSES] {
        std::array::from_fn(|index| Room::new(Class::new(index)))
    }

    /// Free frames.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Segments.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// The number of its nth segment.
    pub fn segment(&self, nth: usize) -> usize {
        self.order[nth]
    }

    /// Whether it has the segment of this number.
    pub fn has(&self, number: usize) -> bool {
        self.segments.get(number).is_some_and(Option::is_some)
    }

    /// Free frames of its nth segment.
    pub fn free_of(&self, nth: usize) -> usize {
        self.segments[self.order[nth]].as_ref().map_or(0, Vec::len)
    }

    /// Segments with nothing in them.
    #[inline]
    pub fn empty(&self) -> usize {
        self.empty
    }

    /// A segment with nothing in it, if there is one beside the last segment.
    pub fn spare_segment(&self) -> Option<usize> {
        if self.empty == 0 || self.order.len() < 2 {
            return None;
        }
        let is_empty = |&nth: &usize| self.free_of(nth) == self.class.frames();
        let is_open = |nth: &usize| Some(self.order[*nth]) != self.closed;
        (0..self.order.len()).rev().filter(is_open).find(is_empty)
    }

    /// Takes a free frame: its segment and its number there.
    #[inline]
    pub fn take(&mut self) -> Option<(usize, usize)> {
        let number = *self.roomy.last()?;
        let segment = self.segments[number].as_mut()?;
        self.empty -= usize::from(segment.len() == self.class.frames());
        let frame = segment.pop()?;
        if segment.is_empty() {
            self.roomy.pop();
        }
        self.free -= 1;
        Some((number, usize::from(frame)))
    }

    /// A frame is free.
    #[inline]
    pub fn give(&mut self, (number, frame): (usize, usize)) {
        let Some(segment) = &mut self.segments[number] else { return };
        if self.closed == Some(number) {
            segment.push(frame as u16);
            return;
        }
        if segment.is_empty() {
            self.roomy.push(number);
        }
        segment.push(frame as u16);
        self.free += 1;
        self.empty += usize::from(segment.len() == self.class.frames());
    }

    /// One segment more. Returns its group if the class has all segments of it now, for the first
    /// time since it had none: segments that come and go are no reason to join them again and again.
    pub fn add(&mut self) -> Option<usize> {
        let number = self.spare.pop().unwrap_or(self.segments.len());
        self.segments.resize_with(self.segments.len().max(number + 1), || None);
        // The lowest is taken first.
        let free: Vec<u16> = (0..self.class.frames() as u16).rev().collect();
        self.free += free.len();
        self.empty += 1;
        self.segments[number] = Some(free);
        self.order.push(number);
        self.roomy.push(number);
        let group = number / GROUP;
        self.whole.resize(self.whole.len().max(group + 1), false);
        let is_new = !self.whole[group] && self.has_of(group) == GROUP;
        self.whole[group] |= is_new;
        is_new.then_some(group)
    }

    /// Segments of a group that the class has.
    fn has_of(&self, group: usize) -> usize {
        self.segments.iter().skip(group * GROUP).take(GROUP).flatten().count()
    }

    /// No frame is taken of its nth segment from now on. One segment can be closed at a time.
    /// Returns its number.
    pub fn close(&mut self, nth: usize) -> usize {
        let number = self.order[nth];
        let free = self.segments[number].as_ref().map_or(0, Vec::len);
        self.free -= free;
        self.empty -= usize::from(free == self.class.frames());
        self.roomy.retain(|&other| other != number);
        self.closed = Some(number);
        number
    }

    /// Removes the segment that was closed, if nothing is in it.
    pub fn remove_closed(&mut self) -> bool {
        let is_it = |&number: &usize| Some(number) == self.closed;
        let Some(nth) = self.order.iter().position(is_it) else { return false };
        let free = self.segments[self.order[nth]].as_ref().map_or(0, Vec::len);
        if free < self.class.frames() {
            return false;
        }
        // `remove` takes these off.
        self.free += free;
        self.empty += 1;
        self.closed = None;
        self.remove(nth);
        true
    }

    /// Its nth segment goes. Nothing is in it.
    pub fn remove(&mut self, nth: usize) {
        let number = self.order.swap_remove(nth);
        if let Some(segment) = self.segments[number].take() {
            self.free -= segment.len();
            self.empty -= usize::from(segment.len() == self.class.frames());
        }
        self.roomy.retain(|&other| other != number);
        self.spare.push(number);
        self.hand = (0, 0);
        if self.has_of(number / GROUP) == 0 {
            self.whole[number / GROUP] = false;
        }
    }

    /// The frame to which the hand comes next: its segment, and its number there.
    #[inline]
    pub fn step(&mut self) -> (usize, usize) {
        let (nth, frame) = self.hand;
        self.hand = match frame + 1 < self.class.frames() {
            true => (nth, frame + 1),
            false if nth + 1 < self.order.len() => (nth + 1, 0),
            false => (0, 0),
        };
        (self.order[nth], frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_which_all_is_free_are_known() {
        let class = Class::of(4096);
        let mut room = Room::new(class);
        (0..3).for_each(|_| assert!(room.add().is_none()));
        assert_eq!((room.len(), room.free(), room.spare_segment()), (3, 3 * class.frames(), Some(2)));
        let taken: Vec<_> = std::iter::from_fn(|| room.take()).collect();
        assert_eq!((taken.len(), room.spare_segment(), room.take()), (3 * class.frames(), None, None));
        let (some, rest): (Vec<_>, Vec<_>) = taken.into_iter().partition(|&(segment, _)| segment == 1);
        some.into_iter().for_each(|at| room.give(at));
        assert_eq!((room.spare_segment(), room.free()), (Some(1), class.frames()));
        room.remove(1);
        assert_eq!((room.len(), room.free(), room.take()), (2, 0, None));
        rest.into_iter().for_each(|at| room.give(at));
        assert_eq!(room.free(), 2 * class.frames());
        room.add();
        assert_eq!((room.len(), room.segment(2), room.free()), (3, 1, 3 * class.frames()));
        // The last segment is kept.
        (0..2).for_each(|_| room.remove(0));
        assert_eq!((room.len(), room.spare_segment()), (1, None));
    }

    #[test]
    fn a_closed_segment_gives_no_frames_and_goes_when_it_is_empty() {
        let class = Class::of(1024);
        let mut room = Room::new(class);
        (0..2).for_each(|_| assert!(room.add().is_none()));
        let taken: Vec<_> = std::iter::from_fn(|| room.take()).collect();
        let (closed, open): (Vec<_>, Vec<_>) = taken.into_iter().partition(|&(segment, _)| segment == 1);
        let (last, rest) = closed.split_last().unwrap();
        rest.iter().for_each(|&at| room.give(at));
        assert_eq!(room.free(), rest.len());
        assert_eq!(room.close(1), 1);
        assert_eq!((room.free(), room.take(), room.remove_closed(), room.spare_segment()), (0, None, false, None));
        room.give(open[0]);
        room.give(*last);
        assert_eq!((room.free(), room.spare_segment(), room.remove_closed()), (1, None, true));
        assert_eq!((room.len(), room.free(), room.take(), room.take()), (1, 1, Some(open[0]), None));
    }

    #[test]
    fn a_group_is_told_once_until_it_was_empty() {
        let mut room = Room::new(Class::of(1024));
        let told = |room: &mut Room, n: usize| (0..n).filter_map(|_| room.add()).collect::<Vec<_>>();
        assert!(told(&mut room, GROUP - 1).is_empty());
        assert_eq!(told(&mut room, 2 * GROUP), [0, 1]);
        // A segment of the first group goes, and comes back.
        let nth = (0..room.len()).find(|&nth| room.segment(nth) == 7).unwrap();
        room.remove(nth);
        assert!(told(&mut room, 1).is_empty() && room.segment(room.len() - 1) == 7);
        // All go, and come back.
        (0..3 * GROUP - 1).for_each(|_| room.remove(room.len() - 1));
        let mut again = told(&mut room, 3 * GROUP - 1);
        again.sort_unstable();
        assert_eq!(again, [0, 1]);
        assert_eq!((room.len(), room.free()), (3 * GROUP - 1, (3 * GROUP - 1) * Class::of(1024).frames()));
    }

    #[test]
    fn the_hand_comes_to_each_frame() {
        let mut room = Room::new(Class::of(1024));
        (0..2).for_each(|_| assert!(room.add().is_none()));
        let each = Class::of(1024).frames();
        let steps: Vec<_> = (0..2 * each).map(|_| room.step()).collect();
        assert_eq!((steps[0], steps[each], steps[2 * each - 1]), ((0, 0), (1, 0), (1, each - 1)));
        assert_eq!(room.step(), (0, 0));
    }
}
