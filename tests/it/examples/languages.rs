//! One service in each language, as its README shows it.

use super::readme::Readme;
use super::stage::Stage;
use crate::support::program;

#[tokio::test]
async fn the_flask_service_works_as_written() {
    let readme = Readme::read("examples/python-flask/README.md");
    readme.leave("pip install");
    works_as_written(readme, ("python3 app.py", 5000), "intake-1").await;
}

#[tokio::test]
async fn the_express_service_works_as_written() {
    if program::has(&["node"]) {
        let readme = Readme::read("examples/node-express/README.md");
        readme.leave("npm ci");
        works_as_written(readme, ("node server.js", 3000), "screening-1").await;
    }
}

#[tokio::test]
async fn the_jdk_service_works_as_written() {
    if program::has(&["java"]) {
        let readme = Readme::read("examples/java-jdk/README.md");
        works_as_written(readme, ("java FxService.java", 8080), "conversion-1").await;
    }
}

#[tokio::test]
async fn the_axum_service_works_as_written() {
    let readme = Readme::read("examples/rust-axum/README.md");
    works_as_written(readme, ("cargo run", 8000), "booking-1").await;
}

#[tokio::test]
async fn the_go_service_works_as_written() {
    if program::has(&["go"]) {
        let readme = Readme::read("examples/go-nethttp/README.md");
        works_as_written(readme, ("go run", 8081), "notice-1").await;
    }
}

/// Starts everything as the README does, makes its one call and looks at the task.
async fn works_as_written(readme: Readme, service: (&str, u16), task: &str) {
    readme.leave("export PATH");
    let stage = Stage::with_dev_registry(readme).await;
    stage
        .serve(service, "collector -c", "hermes-sidecar run\n")
        .await;
    stage.replies(&format!("Hermes-Task-Id: {task}")).await;
    stage.completes(task).await;
    stage.readme.is_used_up();
}
